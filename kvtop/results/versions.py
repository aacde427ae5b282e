"""Versions of the result files. Loads nothing, so that a manifest costs no polars."""

RESULTS_SCHEMA_VERSION = 3  # grows when a column is added, renamed or retyped
DEFINITIONS_VERSION = 2  # grows when the meaning of a measured column changes
