"""A backend that runs GGUF models with llama.cpp, by way of xllamacpp.

The engine is a process below ours. Loading and freeing a model hold Python's global lock for as long as they
take, a damaged file can abort the process, and only a process that ends gives back all memory of a GPU: none
of it may silence the gRPC server. What is generated comes from C++ over a local connection to our event loop.
"""
