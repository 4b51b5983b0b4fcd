"""The loss of one example as a program: trace it, walk its equations, batch it, on any mesh."""
