package driver

// ContigMapper is a domain that makes one range of scattered memory, as an IOMMU
// does (kernel: dma_iova_try_alloc and dma_iova_link).
type ContigMapper interface {
	// MapContig maps the slices of list one behind the other, for local reading and
	// writing. They stay as they are until Unmap. EINVAL: the list or a slice is empty,
	// or they have more than a message's bytes; ENOMEM; EOPNOTSUPP.
	MapContig(list [][]byte) (Contig, error)
}

// Contig is a mapping of scattered memory.
type Contig interface {
	SGE() SGE // all of it as one element
	// Unmap ends the mapping: when it returns nobody touches the memory through it.
	Unmap() error
}

// ContigRemapper is a mapping that can be made again after Unmap, which costs less than a
// new one.
type ContigRemapper interface {
	Remap(list [][]byte) error // as MapContig; on an error it stays unmapped
}
