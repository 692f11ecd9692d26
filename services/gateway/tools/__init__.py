"""Tool calls: how families of models write them, and how they are read and enforced."""
