"""The metadata store on etcd, with our own small client on grpc.aio (docs/decisions/0001-own-etcd-client.md)."""
