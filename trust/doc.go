// Package trust says whom to believe: tickets by which an endpoint picker vouches
// for its routing headers, certificates of both sides of a connection, addresses
// that may be dialed, and cache salts that keep tenants apart.
//
// A request's way: the EPP signs the headers it sets ([Tickets.Sign]); the
// forwarder that obeys them checks the ticket ([Tickets.Check]) or who is on the
// other end of the connection ([Peer]). A worker's way: discovery asks
// [Addresses.Worker] for each record, and the dialer asks [Addresses.Dial] again,
// for a name may resolve to anything.
//
// # Concurrency
//
// Everything is safe for concurrent use. Files are looked at again by whoever uses
// them next, at most once a second for keys and at each handshake for
// certificates; nothing runs in the background.
package trust
