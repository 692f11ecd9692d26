"""Structured output: grammars compiled by llguidance, and the tokens that they allow next.

A grammar goes through two processes. The front has a killable child compile it under limits of
time and memory (`check_child.py`, driven by `baton.worker.grammar_gate`); the library cannot move a
compiled grammar between processes, so the core compiles what has passed once more, in a thread of
its own, and keeps it (`states.py`). Only that sequence waits meanwhile.

Which tokens may come next is worked out in threads as well (`mask_thread.py`), from the moment a
token is known until the next step's logits are there. A sequence whose mask is late sits out that
step. The library bounds the work of one mask (`compiler.py`), the state that of one sequence. A
state is nothing but the grammar and the output tokens so far: any worker rebuilds it from those.
"""
