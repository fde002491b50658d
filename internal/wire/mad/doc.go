// Package mad is the wire format of management datagrams as RoCE carries them:
// the common header, the messages of connection management (IBA 12.6), and the
// header that rdma_cm puts before its users' private data.
//
// Messages are views of byte slices, as the headers of package roce are: a view
// must have the length that its type says, which Parse makes sure of, and its
// getters and setters then never fail. Setters leave reserved bits alone.
package mad
