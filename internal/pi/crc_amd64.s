//go:build !purego

#include "textflag.h"

// Offsets of the multipliers in foldKeys.
#define FOLD1024 0
#define FOLD896 16
#define FOLD768 32
#define FOLD640 48
#define FOLD512 64
#define FOLD384 80
#define FOLD256 96
#define FOLD128 112
#define REDUCE 128
#define QUOTIENT 136
#define POLY 144

// Reverses the bytes of a block.
DATA swap<>+0x00(SB)/8, $0x08090a0b0c0d0e0f
DATA swap<>+0x08(SB)/8, $0x0001020304050607
GLOBL swap<>(SB), RODATA|NOPTR, $16

// ONTO moves the blocks in acc on by the distance that key stands for, and adds what there holds.
#define ONTO(there, key, acc, tmp) \
	VPCLMULQDQ $0x00, key, acc, tmp \
	VPCLMULQDQ $0x11, key, acc, acc \
	VPXOR there, tmp, tmp           \
	VPXOR tmp, acc, acc

// NEXT is ONTO for blocks in memory.
#define NEXT(there, swap, key, acc, tmp, blocks) \
	VMOVDQU there, blocks        \
	VPSHUFB swap, blocks, blocks \
	ONTO(blocks, key, acc, tmp)

// func fold(wide bool, crc uint16, b []byte) uint16
//
// SI is the next byte to read and CX the number of bytes left. The sum of what was read is in X7, or in X0 to X7 or Y0 to Y3 in the
// order of the bytes.
TEXT ·fold(SB), NOSPLIT, $0-34
	MOVBLZX wide+0(FP), BX
	MOVWLZX crc+2(FP), AX
	MOVQ    b_base+8(FP), SI
	MOVQ    b_len+16(FP), CX
	LEAQ    ·foldKeys(SB), DI
	VMOVDQU swap<>(SB), X15

	// The CRC belongs to the first two bytes.
	VMOVD   AX, X13
	VPSLLDQ $14, X13, X13
	CMPQ    CX, $128
	JB      start16
	TESTL   BX, BX
	JZ      start128

	// Four registers of two blocks, 128 bytes a round.
	VBROADCASTI128 swap<>(SB), Y15
	VMOVDQU        (SI), Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	VPSHUFB        Y15, Y0, Y0
	VPSHUFB        Y15, Y1, Y1
	VPSHUFB        Y15, Y2, Y2
	VPSHUFB        Y15, Y3, Y3
	VPXOR          Y13, Y0, Y0
	VBROADCASTI128 FOLD1024(DI), Y14
	ADDQ           $128, SI
	SUBQ           $128, CX
	CMPQ           CX, $128
	JB             merge256

	PCALIGN $32

loop256:
	NEXT(0(SI), Y15, Y14, Y0, Y4, Y8)
	NEXT(32(SI), Y15, Y14, Y1, Y5, Y9)
	NEXT(64(SI), Y15, Y14, Y2, Y6, Y10)
	NEXT(96(SI), Y15, Y14, Y3, Y7, Y11)
	ADDQ $128, SI
	SUBQ $128, CX
	CMPQ CX, $128
	JAE  loop256

merge256:
	// The three behind each other, then the halves of the last.
	VBROADCASTI128 FOLD768(DI), Y4
	VBROADCASTI128 FOLD512(DI), Y5
	VBROADCASTI128 FOLD256(DI), Y6
	ONTO(Y3, Y4, Y0, Y8)
	VPCLMULQDQ     $0x00, Y5, Y1, Y9
	VPCLMULQDQ     $0x11, Y5, Y1, Y1
	VPCLMULQDQ     $0x00, Y6, Y2, Y10
	VPCLMULQDQ     $0x11, Y6, Y2, Y2
	VPXOR          Y9, Y1, Y1
	VPXOR          Y10, Y2, Y2
	VPXOR          Y1, Y0, Y0
	VPXOR          Y2, Y0, Y0
	VEXTRACTI128   $1, Y0, X7
	VMOVDQU        FOLD128(DI), X14
	ONTO(X7, X14, X0, X8)
	VMOVDQA        X0, X7
	JMP            test16

start128:
	// Eight registers of one block.
	VMOVDQU (SI), X0
	VMOVDQU 16(SI), X1
	VMOVDQU 32(SI), X2
	VMOVDQU 48(SI), X3
	VMOVDQU 64(SI), X4
	VMOVDQU 80(SI), X5
	VMOVDQU 96(SI), X6
	VMOVDQU 112(SI), X7
	VPSHUFB X15, X0, X0
	VPSHUFB X15, X1, X1
	VPSHUFB X15, X2, X2
	VPSHUFB X15, X3, X3
	VPSHUFB X15, X4, X4
	VPSHUFB X15, X5, X5
	VPSHUFB X15, X6, X6
	VPSHUFB X15, X7, X7
	VPXOR   X13, X0, X0
	VMOVDQU FOLD1024(DI), X14
	ADDQ    $128, SI
	SUBQ    $128, CX
	CMPQ    CX, $128
	JB      merge128

	PCALIGN $32

loop128:
	NEXT(0(SI), X15, X14, X0, X8, X10)
	NEXT(16(SI), X15, X14, X1, X9, X11)
	NEXT(32(SI), X15, X14, X2, X8, X10)
	NEXT(48(SI), X15, X14, X3, X9, X11)
	NEXT(64(SI), X15, X14, X4, X8, X10)
	NEXT(80(SI), X15, X14, X5, X9, X11)
	NEXT(96(SI), X15, X14, X6, X8, X10)
	NEXT(112(SI), X15, X14, X7, X9, X11)
	ADDQ $128, SI
	SUBQ $128, CX
	CMPQ CX, $128
	JAE  loop128

merge128:
	VMOVDQU FOLD896(DI), X14
	ONTO(X7, X14, X0, X8)
	VMOVDQU FOLD768(DI), X14
	ONTO(X0, X14, X1, X9)
	VMOVDQU FOLD640(DI), X14
	ONTO(X1, X14, X2, X8)
	VMOVDQU FOLD512(DI), X14
	ONTO(X2, X14, X3, X9)
	VMOVDQU FOLD384(DI), X14
	ONTO(X3, X14, X4, X8)
	VMOVDQU FOLD256(DI), X14
	ONTO(X4, X14, X5, X9)
	VMOVDQU FOLD128(DI), X14
	ONTO(X5, X14, X6, X8)
	VMOVDQA X6, X7
	JMP     test16

start16:
	VMOVDQU (SI), X7
	VPSHUFB X15, X7, X7
	VPXOR   X13, X7, X7
	VMOVDQU FOLD128(DI), X14
	ADDQ    $16, SI
	SUBQ    $16, CX

test16:
	CMPQ CX, $16
	JB   reduce

loop16:
	NEXT((SI), X15, X14, X7, X8, X10)
	ADDQ $16, SI
	SUBQ $16, CX
	CMPQ CX, $16
	JAE  loop16

reduce:
	VMOVQ      REDUCE(DI), X1
	VMOVQ      QUOTIENT(DI), X2
	VMOVQ      POLY(DI), X3
	VPCLMULQDQ $0x01, X1, X7, X1
	VMOVQ      X1, AX               // the lowest 16 bits of the 80 ...
	VMOVQ      X7, R8
	VPSRLDQ    $2, X1, X1
	VMOVQ      X1, R9
	XORQ       R8, R9               // ... and the others
	VMOVQ      R9, X4
	VPCLMULQDQ $0x00, X2, X4, X2
	VPEXTRQ    $1, X2, R10
	XORQ       R9, R10              // the quotient
	VMOVQ      R10, X4
	VPCLMULQDQ $0x00, X3, X4, X3
	VMOVQ      X3, DX
	XORL       DX, AX
	MOVW       AX, ret+32(FP)
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
