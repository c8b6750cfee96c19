"""What this machine has: processor, memory, models disk, GPUs, and the build of a backend that fits it.

Start with `detect.detect`. Nothing here ever raises for odd hardware; it says what is odd in `problems`.
"""
