"""The ranks of a core: how they run and end, and how blocks enter and leave them."""
