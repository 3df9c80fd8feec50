"""Speed and memory of fedloom against a hand-written torch loop, measured in the same run."""
