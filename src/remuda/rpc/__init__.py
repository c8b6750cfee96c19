"""The gRPC service of backends. The build makes `backend_pb2` and `backend_pb2_grpc` from backend.proto."""
