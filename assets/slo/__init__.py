"""What was promised and what was kept: objectives, increments, budgets, reports and alert rules.

Read `windows.py` and `increments.py` first: which time a number is about, and how a counter becomes a count. Then
`indicators.py` (sums over ranges, in Spark), `budgets.py` (judgements, exact) and `report.py` (the two together).
Modules here read no clock and build no Spark session; only `samples.py` reads files.
"""
