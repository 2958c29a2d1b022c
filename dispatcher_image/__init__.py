"""One image, two programs: `dispatch` delivers the events of one channel, `receive` takes events in for all of them.

`python -m dispatcher_image dispatch|receive`; configuration by environment (README.md). The parts, from pure to real:

* `offsets`, `delivery`, `lanes`: decide. No clock, no input or output.
* `consumer`, `sender` and what they use: talk to Kafka and to subscribers.
* `subscription`, `dispatch`: wire them, follow the registry, drain and stop.
"""
