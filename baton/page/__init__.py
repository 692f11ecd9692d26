"""The web page of a fleet, of a local stack or in a cluster: what it reads, keeps and answers.

Knows no state file and no cluster: the processes of the fleet come from a source (fleet_source.py),
and who may ask is decided by whoever serves it.
"""
