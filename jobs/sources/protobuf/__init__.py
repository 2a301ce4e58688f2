"""Reads Protobuf's schemas and records. Only this package uses `grpcio-tools`, which the extra `protobuf` installs."""
