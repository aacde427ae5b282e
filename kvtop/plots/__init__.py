"""Plots of compared runs: what to draw (``panels``), as SVG (``svg``) and as lines of text (``text``)."""
