package rdma_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-rdma/verbena/rdma"
)

func ExampleOpen() {
	dev, err := rdma.Open(context.Background(), "127.0.0.1") // or a device, or an interface, or "" for the first
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	port, err := dev.QueryPort(1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(port.State, port.LinkLayer)
	// Output: active Ethernet
}
