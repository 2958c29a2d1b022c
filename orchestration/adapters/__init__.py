"""Adapters: the only modules that talk to a library of the outside. Each implements one port of the control plane."""
