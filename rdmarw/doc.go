// Package rdmarw moves scatterlists to or from a peer's memory, as a storage target
// does: the kernel's rdma_rw (rdma_rw_ctx_post(9)) in user space. A context decides by
// itself how many READs or WRITEs that takes, of how many elements, with or without the
// registration of memory, and of invalidating it afterwards; its user sees a
// scatterlist, one post and one completion.
package rdmarw
