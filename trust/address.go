package trust

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"syscall"

	"pointsman/fleet"
)

// ErrAddress says that a worker's address is not one that requests may go to.
var ErrAddress = errors.New("address not allowed (--allow-address-cidrs admits it)")

// Addresses says where workers may be. The zero value refuses what no worker is
// at: link-local addresses, at which clouds serve credentials, their metadata
// services elsewhere, multicast and unspecified ones (failover.md §5, S3).
type Addresses struct {
	// Allow are networks that are admitted all the same.
	Allow []netip.Prefix
	// Loopback admits this machine's own addresses. A worker there makes sense
	// only if the fleet is this machine's alone.
	Loopback bool
}

// metadataServices are addresses of clouds' metadata services that no other rule
// covers.
var metadataServices = []netip.Addr{ //nolint:gochecknoglobals // an immutable table
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("168.63.129.16"),   // Azure
}

// Check says whether addr may be dialed.
func (a *Addresses) Check(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	for _, net := range a.Allow {
		if net.Contains(addr) {
			return nil
		}
	}
	var why string
	switch {
	case !addr.IsValid():
		why = "invalid"
	case addr.IsUnspecified():
		why = "unspecified"
	case addr.IsMulticast():
		why = "multicast"
	case addr.IsLinkLocalUnicast():
		why = "link-local"
	case slices.Contains(metadataServices, addr):
		why = "a metadata service"
	case addr.IsLoopback() && !a.Loopback:
		why = "loopback"
	default:
		return nil
	}
	return fmt.Errorf("%s is %s: %w", addr, why, ErrAddress)
}

// Worker says whether every address in a worker's record may be dialed. A name is
// let through: [Addresses.Dial] sees what it resolves to.
func (a *Addresses) Worker(w *fleet.Worker) error {
	hosts := []string{w.Host, hostOf(w.Endpoint), urlHost(w.KVEvents), urlHost(w.KVReplay)}
	for _, host := range hosts {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			continue
		}
		if err := a.Check(addr); err != nil {
			return err
		}
	}
	return nil
}

func hostOf(endpoint string) string {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return endpoint
	}
	return host
}

func urlHost(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Dial is a control function for a [net.Dialer]: it is called with the address
// that is about to be dialed, after any name has been resolved.
func (a *Addresses) Dial(_, address string, _ syscall.RawConn) error {
	end, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	return a.Check(end.Addr())
}
