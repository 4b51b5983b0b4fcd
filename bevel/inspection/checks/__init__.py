"""What can be wrong with a step on a mesh: one check, one function of an examined step."""
