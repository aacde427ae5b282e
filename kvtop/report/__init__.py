"""One self-contained HTML page about runs: what was run, the tables of ``kvtop compare``, and plots.

Plots are Vega-Lite specifications as plain data (``charts``); the vl-convert library draws them (``vega``). A module
of figures reads the tables of a run and gives ``Figure``s; ``build`` puts them in order, ``page`` makes the HTML.
"""
