"""The metadata store on etcd: a small client of our own on grpc.aio (docs/decisions/0001-own-etcd-client.md)."""
