"""The canary: a small program that sends a record through every broker and sees if, when and how it comes back.

Start with `ledger` (what became of each record) and `coverage` (which partition proves which broker): both are pure.
`probe` joins them with the metrics; `session` drives it with real Kafka clients; `__main__` puts all together.
"""
