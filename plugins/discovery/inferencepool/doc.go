// Package inferencepool follows the Pods of one InferencePool (Gateway API
// Inference Extension, v1), or of a label selector where there are no such
// objects. It implements fleet.Source.
//
// Each Pod and target port is an endpoint, that is a worker. Where the Pod
// carries the record of an Infera worker, that says what it is (model, role,
// transfer protocol, cache events), and the pool says where gateways reach it.
// Of other Pods the model is what the configuration says, else what the endpoint
// tells at /v1/models; until it has told, it may serve any.
//
//   - A Pod is a candidate while its Ready condition is true and it is not being
//     deleted. Otherwise its workers drain, and what is known of their caches is
//     kept for the same process.
//   - The annotation inference.networking.k8s.io/active-ports leaves of the target
//     ports only those that it names.
//   - Another selector or other ports in the pool mean a new listing of the Pods;
//     the former fleet stays until it is there.
//   - A pool that does not exist, its CRD that is not installed, and a missing role
//     are waited for; [Source.Waiting] says which.
//
// The priorities of InferenceObjectives and the rules of InferenceModelRewrites
// that refer to the pool go to a [objectives.Book]. Both are read in both of their
// API groups, and both are optional: that a resource is not installed, or not
// allowed, is said once. Nothing is ever written to the API server: a pool's
// status belongs to gateways.
//
// # Concurrency
//
// Each followed resource has a goroutine, and so have the questions for models,
// at most Config.Asked of which are open at once. They end with Watch. What they
// find is applied under one mutex.
package inferencepool
