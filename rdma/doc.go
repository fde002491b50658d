// Package rdma finds and opens the RDMA devices of this machine, and connects
// programs: the front door of the module. It knows every provider; package verbs is
// what one does with an open device.
//
//	dev, err := rdma.Open(ctx, "")
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//
// # Connections
//
// [Dial] and [Listen] connect two programs by IP address and port, with Linux's rdma_cm
// and librdmacm at either end if need be. A [Conn] sends and receives messages and reads
// and writes memory that the peer has offered:
//
//	conn, err := rdma.Dial(ctx, "192.0.2.1:7471")
//	...
//	err = conn.Send(ctx, []byte("hello"))
//	answer, err := conn.Recv(ctx)
//
// A program that has several connections at a time makes a [Host] for all of them, which
// opens each device once, and is needed where addresses are not shared. For datagrams,
// multicast, other types of queue pairs and events there is package rdmacm
// ([Host.Manager]).
//
// # Devices
//
// Every network interface that is up and has an address has a software device,
// soft_<interface>, the loopback interface too. Nothing need be installed and no
// privilege is needed.
//
// # Addresses
//
// A device's GID table holds its interface's addresses. Options and the
// environment variable VERBENA_ADDRS replace them:
//
//	VERBENA_ADDRS="lo=127.0.0.2,eth0=10.0.0.1+10.0.0.2"
//
// gives soft_lo the one GID 127.0.0.2 and soft_eth0 two. Interfaces that are not
// named keep their own addresses. On the loopback interface any address of
// 127.0.0.0/8 will do; elsewhere the host must have the address, or Open fails with
// EADDRNOTAVAIL. An interface that does not exist,
// an address that is invalid or not unicast, or a name that is listed twice
// makes Devices and Open fail with EINVAL and tell what is wrong.
//
// # Captures
//
//	VERBENA_PCAP=/tmp/{device}-{pid}.pcapng
//
// has each software device write the packets that it sends and receives to a file,
// with IP and UDP headers, for Wireshark or verbena dump. Packets between two
// programs of one host are there too, which no other tool shows without root. See
// WithCapture.
package rdma
