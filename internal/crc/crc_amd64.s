//go:build !purego

#include "textflag.h"

// Offsets of the multipliers in foldKeys.
#define FOLD2048 0
#define FOLD1024 16
#define FOLD768 32
#define FOLD512 48
#define FOLD256 64
#define FOLD128 80
#define REDUCE 96
#define QUOTIENT 104
#define POLY 112

// From byte r on, the first 16 bytes shuffle the first r bytes of a block to its end; from byte 16+r on, they shuffle the others to
// its beginning. Bytes with the high bit set clear.
DATA slide<>+0x00(SB)/8, $0x8080808080808080
DATA slide<>+0x08(SB)/8, $0x8080808080808080
DATA slide<>+0x10(SB)/8, $0x0706050403020100
DATA slide<>+0x18(SB)/8, $0x0f0e0d0c0b0a0908
DATA slide<>+0x20(SB)/8, $0x8080808080808080
DATA slide<>+0x28(SB)/8, $0x8080808080808080
GLOBL slide<>(SB), RODATA|NOPTR, $48

// ONTO moves the blocks in acc on by the distance that key stands for, and adds what lies there.
#define ONTO(there, key, acc, tmp) \
	VPCLMULQDQ $0x00, key, acc, tmp \
	VPCLMULQDQ $0x11, key, acc, acc \
	VPXOR there, tmp, tmp           \
	VPXOR tmp, acc, acc

// func fold(crc uint32, b []byte) uint32
//
// SI is the next byte to read and CX the number of bytes left. The sum of what was read is in Y7 or X7, or in Y0 to Y7 or Y4
// to Y7 in the order of the bytes.
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL  crc+0(FP), AX
	MOVQ  b_base+8(FP), SI
	MOVQ  b_len+16(FP), CX
	LEAQ  ·foldKeys(SB), DI
	NOTL  AX
	VMOVD AX, X8
	CMPQ  CX, $32
	JB    start16
	CMPQ  CX, $128
	JB    start32
	CMPQ  CX, $512
	JB    start128

	// Eight registers, 256 bytes a round: on any processor enough to hide how long a multiplication takes.
	VPXOR          (SI), Y8, Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	VMOVDQU        128(SI), Y4
	VMOVDQU        160(SI), Y5
	VMOVDQU        192(SI), Y6
	VMOVDQU        224(SI), Y7
	VBROADCASTI128 FOLD2048(DI), Y12
	ADDQ           $256, SI
	SUBQ           $256, CX

	PCALIGN $32

loop256:
	ONTO(0(SI), Y12, Y0, Y8)
	ONTO(32(SI), Y12, Y1, Y9)
	ONTO(64(SI), Y12, Y2, Y10)
	ONTO(96(SI), Y12, Y3, Y11)
	ONTO(128(SI), Y12, Y4, Y8)
	ONTO(160(SI), Y12, Y5, Y9)
	ONTO(192(SI), Y12, Y6, Y10)
	ONTO(224(SI), Y12, Y7, Y11)
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JAE  loop256

	VBROADCASTI128 FOLD1024(DI), Y12
	ONTO(Y4, Y12, Y0, Y8)
	ONTO(Y5, Y12, Y1, Y9)
	ONTO(Y6, Y12, Y2, Y10)
	ONTO(Y7, Y12, Y3, Y11)
	VMOVDQA        Y0, Y4
	VMOVDQA        Y1, Y5
	VMOVDQA        Y2, Y6
	VMOVDQA        Y3, Y7
	JMP            test128

start128:
	VPXOR          (SI), Y8, Y4
	VMOVDQU        32(SI), Y5
	VMOVDQU        64(SI), Y6
	VMOVDQU        96(SI), Y7
	VBROADCASTI128 FOLD1024(DI), Y12
	ADDQ           $128, SI
	SUBQ           $128, CX

test128:
	CMPQ CX, $128
	JB   merge128

	PCALIGN $32

loop128:
	ONTO(0(SI), Y12, Y4, Y8)
	ONTO(32(SI), Y12, Y5, Y9)
	ONTO(64(SI), Y12, Y6, Y10)
	ONTO(96(SI), Y12, Y7, Y11)
	ADDQ $128, SI
	SUBQ $128, CX
	CMPQ CX, $128
	JAE  loop128

merge128:
	VBROADCASTI128 FOLD768(DI), Y9
	VBROADCASTI128 FOLD512(DI), Y10
	VBROADCASTI128 FOLD256(DI), Y12
	ONTO(Y7, Y9, Y4, Y8)
	ONTO(Y4, Y10, Y5, Y9)
	ONTO(Y5, Y12, Y6, Y10)
	VMOVDQA        Y6, Y7
	JMP            test32

start32:
	VPXOR          (SI), Y8, Y7
	VBROADCASTI128 FOLD256(DI), Y12
	ADDQ           $32, SI
	SUBQ           $32, CX

test32:
	CMPQ CX, $32
	JB   merge32

loop32:
	ONTO((SI), Y12, Y7, Y8)
	ADDQ $32, SI
	SUBQ $32, CX
	CMPQ CX, $32
	JAE  loop32

merge32:
	VEXTRACTI128 $1, Y7, X6
	VMOVDQU      FOLD128(DI), X12
	ONTO(X6, X12, X7, X8)
	CMPQ         CX, $16
	JB           rest
	JMP          fold16

start16:
	VPXOR   (SI), X8, X7
	VMOVDQU FOLD128(DI), X12
	ADDQ    $16, SI
	SUBQ    $16, CX
	CMPQ    CX, $16
	JB      rest

fold16:
	ONTO((SI), X12, X7, X8)
	ADDQ $16, SI
	SUBQ $16, CX

rest:
	// Of what is summed up and the 1 to 15 bytes left make two blocks: the last 16 bytes, and those before with zeros in front.
	TESTQ      CX, CX
	JZ         reduce
	LEAQ       slide<>(SB), DX
	VMOVDQU    (DX)(CX*1), X1
	VMOVDQU    16(DX)(CX*1), X2
	VMOVDQU    -16(SI)(CX*1), X3
	VPSHUFB    X2, X7, X4
	VPSHUFB    X1, X7, X7
	VPBLENDVB  X2, X3, X4, X4
	ONTO(X4, X12, X7, X8)

reduce:
	VMOVQ      REDUCE(DI), X1
	VMOVQ      QUOTIENT(DI), X2
	VMOVQ      POLY(DI), X3
	VPCLMULQDQ $0x00, X1, X7, X0
	VPSRLDQ    $8, X7, X7
	VPXOR      X0, X7, X7
	VPCLMULQDQ $0x00, X2, X7, X0
	VPCLMULQDQ $0x00, X3, X0, X0
	VPXOR      X0, X7, X7
	VPEXTRD    $2, X7, AX
	NOTL       AX
	MOVL       AX, ret+32(FP)
	VZEROUPPER
	RET

// func cpuid(leaf, sub uint32) (a, b, c uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, a+8(FP)
	MOVL BX, b+12(FP)
	MOVL CX, c+16(FP)
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET
