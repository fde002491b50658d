package rdma_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/rdma"
)

// A server and a client. They are in one program here, so they share a Host; in two
// programs each calls rdma.Listen or rdma.Dial instead, and there is no Host.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	host, err := rdma.NewHost(rdma.WithAddrs("lo", netip.MustParseAddr("127.0.11.1")))
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()

	listener, err := host.Listen(ctx, "127.0.11.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		for {
			m, err := conn.Recv(ctx)
			if err == io.EOF {
				return
			}
			if err != nil {
				log.Fatal(err)
			}
			if err := conn.Send(ctx, append([]byte("you said: "), m...)); err != nil {
				log.Fatal(err)
			}
		}
	}()

	conn, err := host.Dial(ctx, "127.0.11.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.Send(ctx, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	m, err := conn.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m)
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}
	<-served
	// Output: you said: hello
}

// One side registers memory and tells the other one where it is and the key to it; the other one
// writes it without the first one's doing, and then says so by a message.
func ExampleConn_RemoteWrite() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	host, err := rdma.NewHost(rdma.WithAddrs("lo", netip.MustParseAddr("127.0.11.2")))
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	listener, err := host.Listen(ctx, "127.0.11.2:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()

	done := make(chan struct{})
	go func() { // offers memory
		defer close(done)
		conn, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		memory := make([]byte, 32)
		mr, err := conn.RegisterWrite(memory)
		if err != nil {
			log.Fatal(err)
		}
		key, _ := rdma.RemoteOf(mr).MarshalBinary()
		if err := conn.Send(ctx, key); err != nil {
			log.Fatal(err)
		}
		if _, err := conn.Recv(ctx); err != nil { // comes after what was written before it
			log.Fatal(err)
		}
		fmt.Printf("%q\n", memory)
	}()

	conn, err := host.Dial(ctx, "127.0.11.2:7471") // writes it
	if err != nil {
		log.Fatal(err)
	}
	key, err := conn.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var memory rdma.Remote
	if err := memory.UnmarshalBinary(key); err != nil {
		log.Fatal(err)
	}
	if err := conn.RemoteWrite(ctx, memory.At(8), []byte("written from afar"), nil); err != nil {
		log.Fatal(err)
	}
	if err := conn.Send(ctx, nil); err != nil {
		log.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}
	<-done
	// Output: "\x00\x00\x00\x00\x00\x00\x00\x00written from afar\x00\x00\x00\x00\x00\x00\x00"
}
