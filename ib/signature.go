package ib

// WRRegMRIntegrity registers a signature region (IB_WR_REG_MR_INTEGRITY of the
// kernel's interface). Its completion has the opcode WCRegMR.
const WRRegMRIntegrity WROpcode = 0x21

// SigType is the kind of protection information of a domain (kernel: enum
// ib_signature_type).
type SigType uint8

// Kinds of protection information.
const (
	SigTypeNone   SigType = iota // blocks of data alone
	SigTypeT10DIF                // T10 protection information: 8 bytes behind each block
)

// T10DIFGuard is how the guard of a block is computed (kernel: enum
// ib_t10_dif_bg_type).
type T10DIFGuard uint8

// Guards.
const (
	T10DIFCRC  T10DIFGuard = iota // CRC-16/T10-DIF
	T10DIFCSUM                    // the Internet checksum (RFC 1071)
)

// T10DIFDomain describes protection information (kernel: struct ib_t10_dif_domain).
// A tuple of 8 bytes stands behind each block: guard, application tag, reference tag,
// big-endian.
//
// T10's types 1 and 2 have RefRemap and AppEscape, type 3 has AppEscape and RefEscape.
type T10DIFDomain struct {
	BGType     T10DIFGuard
	PIInterval int    // bytes of data in a block: a multiple of 8 from 512 to 65,528
	BG         uint16 // seed of the guard: the CRC's initial value, or what the sum begins with
	AppTag     uint16
	RefTag     uint32 // of the first block
	RefRemap   bool   // the reference tag counts up with the blocks
	// AppEscape: a block whose application tag is 0xFFFF is not checked.
	AppEscape bool
	// RefEscape, with AppEscape: only if its reference tag is 0xFFFFFFFF besides.
	RefEscape       bool
	AppTagCheckMask uint16 // bits of the application tag that are compared
}

// SigDomain is how data looks in memory, or on the wire (kernel: struct
// ib_sig_domain).
type SigDomain struct {
	SigType SigType
	DIF     T10DIFDomain // SigTypeT10DIF
}

// SigAttrs tell what becomes of data on its way between memory and wire (kernel:
// struct ib_sig_attrs).
type SigAttrs struct {
	// CheckMask has a bit for each byte of a tuple, the highest for the first: those
	// bytes of tuples that arrive, from memory or from the wire, are checked.
	CheckMask  uint8
	Mem, Wire  SigDomain
	MetaLength int // bytes of metadata that are mapped; 0: not told
}

// Bits of SigAttrs.CheckMask (kernel: IB_SIG_CHECK_GUARD and so on).
const (
	SigCheckGuard  = 0xC0
	SigCheckAppTag = 0x30
	SigCheckRefTag = 0x0F
)

// SigErrType is what is wrong with a block (kernel: enum ib_sig_err_type).
type SigErrType uint8

// What may be wrong.
const (
	SigBadGuard SigErrType = iota
	SigBadRefTag
	SigBadAppTag
)

// SigErr is the first block of a signature region that was found to be wrong
// (kernel: struct ib_sig_err).
type SigErr struct {
	Type             SigErrType
	Expected, Actual uint32 // of the guard or the tag
	// SigErrOffset is where the block begins, in bytes from the beginning of the
	// region, every block counted with its tuple: divided by PIInterval + 8 it is the
	// number of the block, whichever side has tuples.
	SigErrOffset uint64
	Key          uint32 // of the region, as it was then
}

// What a device can do with signatures (kernel: enum ib_signature_prot_cap and enum
// ib_signature_guard_cap).
const (
	SigProtT10DIFType1 uint32 = 1 << 0
	SigProtT10DIFType2 uint32 = 1 << 1
	SigProtT10DIFType3 uint32 = 1 << 2

	SigGuardT10DIFCRC  uint32 = 1 << 0
	SigGuardT10DIFCSUM uint32 = 1 << 1
)

var sigErrWords = []word{
	SigBadGuard:  {"bad guard", "IB_SIG_BAD_GUARD"},
	SigBadRefTag: {"bad reference tag", "IB_SIG_BAD_REFTAG"},
	SigBadAppTag: {"bad application tag", "IB_SIG_BAD_APPTAG"},
}

// String says what is wrong, "bad guard".
func (t SigErrType) String() string { return text(sigErrWords, "SigErrType", int(t)) }

// Name prints the constant of the kernel's interface, "IB_SIG_BAD_GUARD".
func (t SigErrType) Name() string { return name(sigErrWords, "SigErrType", int(t)) }

var sigTypeWords = []word{
	SigTypeNone:   {"none", "IB_SIG_TYPE_NONE"},
	SigTypeT10DIF: {"T10-DIF", "IB_SIG_TYPE_T10_DIF"},
}

// String prints the kind, "T10-DIF".
func (t SigType) String() string { return text(sigTypeWords, "SigType", int(t)) }

// Name prints the constant of the kernel's interface, "IB_SIG_TYPE_T10_DIF".
func (t SigType) Name() string { return name(sigTypeWords, "SigType", int(t)) }

var guardWords = []word{
	T10DIFCRC:  {"CRC", "IB_T10DIF_CRC"},
	T10DIFCSUM: {"CSUM", "IB_T10DIF_CSUM"},
}

// String prints the guard, "CRC".
func (g T10DIFGuard) String() string { return text(guardWords, "T10DIFGuard", int(g)) }

// Name prints the constant of the kernel's interface, "IB_T10DIF_CRC".
func (g T10DIFGuard) Name() string { return name(guardWords, "T10DIFGuard", int(g)) }
