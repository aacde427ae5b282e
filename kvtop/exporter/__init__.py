"""What a run tells Prometheus: vLLM's metric names where the meaning is the same, ``kvtop_*`` for the rest.

totals.py   what is counted since the run's start
metrics.py  every metric: its name, its meaning, how it is read
meter.py    a session whose events are counted on their way, and the text of all of them
server.py   HTTP
"""
