"""The words that two programs must agree on, and nothing else.

A thing belongs here only if two programs break at run time when they disagree about it. The package is pure and
imports the standard library alone, so that every image can carry it.

| module            | agreed between                                                                             |
|-------------------|--------------------------------------------------------------------------------------------|
| `channels`        | orchestration, which plans KafkaChannels, and dispatcher and receiver, which obey them     |
| `cloudevents`     | the receiver, which writes events into Kafka records, and the dispatcher, which reads them |
| `kafka_security`  | the mounted Secret that a deployer writes and every Kafka client reads                     |
| `program_config`  | orchestration, which writes an image's environment, and the image, which reads it          |
| `metrics`         | the images, which export series, and the SLO objectives, which select them                 |
| `errors`          | whoever raises and whoever decides if a retry would help                                   |
"""
