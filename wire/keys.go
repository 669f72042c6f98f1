package wire

import (
	"encoding/base64"
	"strings"
)

// WorkersPrefix is the etcd prefix of worker registrations
// (Infera infera/common/registration.py).
const WorkersPrefix = "/infera/workers/"

// Annotation is the Pod annotation that holds a worker's registration
// (Infera infera/common/registration_k8s.py).
const Annotation = "infera.amd.com/worker-info"

// CanaryText is what launchers tokenize, without special tokens around it, into
// the tokenizer canary that they register (Infera infera/kv/compat_key.py).
const CanaryText = "Hello, world!\n你好，世界！<|im_start|>system\n<|endoftext|><|im_end|>🦄"

// Prefix returns the prefix to list and watch for a configured one:
// [WorkersPrefix] for "", and always with a trailing slash, which Infera adds
// when it is missing (infera/common/discovery.py).
func Prefix(configured string) string {
	if configured == "" {
		return WorkersPrefix
	}
	if !strings.HasSuffix(configured, "/") {
		return configured + "/"
	}
	return configured
}

// WorkerKey returns the etcd key that registers id under a configured prefix.
func WorkerKey(prefix, id string) string { return Prefix(prefix) + id }

// WorkerID returns the ID that key registers under a configured prefix; ok is
// false when key is not a worker's.
func WorkerID(prefix, key string) (id string, ok bool) {
	id, ok = strings.CutPrefix(key, Prefix(prefix))
	return id, ok && id != ""
}

// Token returns the form of a worker ID that NATS subjects, bucket keys and
// durable names are built with: unpadded base64url
// (Infera infera/common/nats_request.py).
func Token(workerID string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(workerID))
}
