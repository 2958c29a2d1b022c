"""The control plane: observes the world, plans what is to be done, applies it, and shows all of it in Dagster.

Start reading at `planning.planner.plan`, which decides; `apply.reconcile_once` is the round that everything runs, and
`definitions` is where Dagster begins.
"""
