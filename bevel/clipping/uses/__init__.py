"""Where parameters meet examples, and the taps that read their gradients there."""
