package etcd

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pointsman/wire"
)

// fuzzedEvent is a change as etcd's client hands it over.
func fuzzedEvent(key string, value []byte, lease, revision int64, gone bool) *clientv3.Event {
	e := &clientv3.Event{
		Type: clientv3.EventTypePut,
		Kv:   &mvccpb.KeyValue{Key: []byte(wire.WorkersPrefix + key), Value: value, Lease: lease, ModRevision: revision, CreateRevision: revision},
	}
	if gone {
		e.Type, e.Kv.Value = clientv3.EventTypeDelete, nil
	}
	return e
}
