/* A client of examples/blocktarget on librdmacm: its memory is registered with the kernel's device, and the target reads and writes it.
 *
 * blockpeer ADDR PORT   writes the device's blocks by requests of several lengths, many at a time, and reads them back. With protection
 *                       information it makes and compares the tuples by itself, and shows that a wrong block is refused.
 *
 * It says for each length what it has written, as a checksum (FNV-1a, 64 bits), and that the same came back. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 8, REQUEST = 40, RESPONSE = 32, TUPLE = 8 };
enum { READ = 1, WRITE = 2, FLUSH = 3, FLAG_PI = 1 };
enum { OK = 0, BAD_REQUEST = 1, OUT_OF_RANGE = 2, BAD_GUARD = 4, BAD_REFTAG = 5 };

static struct rdma_cm_id *id;
static uint32_t block, max_length, depth, protection;
static uint64_t blocks;
static uint8_t *memory, *messages; /* the slots' data as the wire has it; responses */
static struct ibv_mr *memory_mr, *messages_mr;
static size_t slot_len;

static void die(const char *what)
{
	printf("FAILED %s errno=%d (%s)\n", what, errno, strerror(errno));
	exit(1);
}

static uint16_t get16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static void put16(uint8_t *p, uint16_t v) { p[0] = v >> 8, p[1] = v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16), put16(p + 2, v); }
static void put64(uint8_t *p, uint64_t v) { put32(p, v >> 32), put32(p + 4, v); }

/* guard is CRC-16/T10-DIF. */
static uint16_t guard(const uint8_t *p, size_t n)
{
	uint16_t crc = 0;
	while (n--) {
		crc ^= *p++ << 8;
		for (int i = 0; i < 8; i++)
			crc = crc & 0x8000 ? crc << 1 ^ 0x8BB7 : crc << 1;
	}
	return crc;
}

static uint64_t fnv(uint64_t sum, const uint8_t *p, size_t n)
{
	while (n--)
		sum = (sum ^ *p++) * 0x100000001B3;
	return sum;
}

/* content is what block b has after the given run. */
static void content(uint8_t *p, uint64_t b, int run)
{
	uint64_t x = (b * 977 + run) * 0x9E3779B97F4A7C15 + 1;
	for (uint32_t i = 0; i < block; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		p[i] = x;
	}
}

static uint32_t tag_of(uint64_t b) { return protection == 3 ? 0x12345678 : (uint32_t)b; }

static size_t wire_block(void) { return block + (protection ? TUPLE : 0); }

/* fill makes n blocks from b on, as the wire has them. */
static void fill(uint8_t *p, uint64_t b, uint32_t n, int run)
{
	for (; n--; b++, p += wire_block()) {
		content(p, b, run);
		if (protection) {
			put16(p + block, guard(p, block));
			put16(p + block + 2, 0x0815);
			put32(p + block + 4, tag_of(b));
		}
	}
}

static void post(int op, int slot, uint64_t b, uint32_t n)
{
	uint8_t r[REQUEST] = {op, protection ? FLAG_PI : 0};
	put32(r + 4, slot);
	put64(r + 8, b * block);
	put32(r + 16, n * block);
	put32(r + 20, memory_mr->rkey);
	put64(r + 24, (uintptr_t)memory + slot * slot_len);
	put32(r + 32, tag_of(b));
	if (rdma_post_send(id, NULL, r, REQUEST, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED))
		die("post_send");
}

/* answer waits for a response, and gives its slot. */
static int answer(int *status)
{
	struct ibv_wc wc;
	if (rdma_get_send_comp(id, &wc) != 1 || wc.status)
		die(ibv_wc_status_str(wc.status));
	if (rdma_get_recv_comp(id, &wc) != 1 || wc.status || wc.byte_len != RESPONSE)
		die(ibv_wc_status_str(wc.status));
	uint8_t *m = (uint8_t *)(uintptr_t)wc.wr_id;
	*status = get16(m);
	int slot = get32(m + 4);
	if (rdma_post_recv(id, m, m, RESPONSE, messages_mr))
		die("post_recv");
	return slot;
}

static void want(int slot, int status)
{
	int got, s = answer(&got);
	if (got != status || s != slot) {
		printf("FAILED response %d of %d, want %d of %d\n", got, s, status, slot);
		exit(1);
	}
}

/* all moves the whole device by requests of n blocks, in any order of their ends. */
static void all(int op, uint32_t n, int run)
{
	uint64_t next = 0, at[SLOTS];
	uint32_t len[SLOTS];
	int open = 0, idle[SLOTS], idles = 0;
	for (uint32_t i = 0; i < (depth < SLOTS ? depth : SLOTS); i++)
		idle[idles++] = i;
	while (next < blocks || open) {
		while (next < blocks && idles) {
			int s = idle[--idles];
			at[s] = next;
			len[s] = blocks - next < n ? blocks - next : n;
			if (op == WRITE)
				fill(memory + s * slot_len, next, len[s], run);
			else
				memset(memory + s * slot_len, 0xEE, len[s] * wire_block());
			post(op, s, next, len[s]);
			next += len[s];
			open++;
		}
		int status, s = answer(&status);
		if (status) {
			printf("FAILED status %d of %u blocks at %llu\n", status, len[s], (unsigned long long)at[s]);
			exit(1);
		}
		if (op == READ) {
			static uint8_t *is;
			if (!is)
				is = malloc(slot_len);
			fill(is, at[s], len[s], run);
			if (memcmp(is, memory + s * slot_len, len[s] * wire_block())) {
				printf("FAILED other bytes in %u blocks at %llu\n", len[s], (unsigned long long)at[s]);
				exit(1);
			}
		}
		idle[idles++] = s;
		open--;
	}
}

/* refused shows that a request with something wrong ends so and changes nothing. */
static void refused(int run)
{
	post(READ, 0, blocks, 1);
	want(0, OUT_OF_RANGE);
	if (!protection)
		return;
	fill(memory, 3, 8, run + 1);
	memory[2 * wire_block() + 100] ^= 4;
	post(WRITE, 0, 3, 8);
	want(0, BAD_GUARD);
	if (protection != 3) {
		fill(memory, 3, 8, run + 1);
		memory[5 * wire_block() + block + 7] ^= 1;
		post(WRITE, 0, 3, 8);
		want(0, BAD_REFTAG);
	}
	all(READ, 8, run);
	printf("REFUSED\n");
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *ai;
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 2 * SLOTS;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = REQUEST;
	if (argc < 3 || rdma_getaddrinfo(argv[1], argv[2], &hints, &ai))
		die("getaddrinfo");
	if (rdma_create_ep(&id, ai, NULL, &attr))
		die("create_ep");
	messages = malloc(2 * SLOTS * RESPONSE);
	if (!(messages_mr = rdma_reg_msgs(id, messages, 2 * SLOTS * RESPONSE)))
		die("reg_msgs");
	for (uint8_t *m = messages; m < messages + 2 * SLOTS * RESPONSE; m += RESPONSE)
		if (rdma_post_recv(id, m, m, RESPONSE, messages_mr))
			die("post_recv");
	uint8_t hello[8] = {'V', 'B', 'L', 'K', 0, 1, 0, SLOTS};
	struct rdma_conn_param p = {.private_data = hello, .private_data_len = sizeof hello, .responder_resources = 16, .initiator_depth = 16};
	p.retry_count = p.rnr_retry_count = 7;
	if (rdma_connect(id, &p))
		die("connect");
	const uint8_t *g = id->event->param.conn.private_data;
	if (!g || id->event->param.conn.private_data_len < 28 || memcmp(g, "VBLK\0\1", 6))
		die("geometry");
	depth = get16(g + 6), block = get32(g + 8), blocks = get64(g + 12), max_length = get32(g + 20), protection = g[24];
	printf("GEOMETRY %llu blocks of %u, protection %u\n", (unsigned long long)blocks, block, protection);
	slot_len = max_length / block * wire_block();
	memory = malloc(SLOTS * slot_len);
	memory_mr = ibv_reg_mr(id->pd, memory, SLOTS * slot_len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!memory || !memory_mr)
		die("reg_mr");
	int run = 0;
	for (uint32_t n = 1; n <= max_length / block; n = n * 7 + 1 <= max_length / block || n == max_length / block ? n * 7 + 1 : max_length / block) {
		all(WRITE, n, ++run);
		post(FLUSH, 0, 0, 0);
		want(0, OK);
		all(READ, n, run);
		uint64_t sum = 0xCBF29CE484222325;
		uint8_t *b = malloc(block);
		for (uint64_t i = 0; i < blocks; i++) {
			content(b, i, run);
			sum = fnv(sum, b, block);
		}
		free(b);
		printf("MOVED %u bytes at a time, sum %016llx\n", n * block, (unsigned long long)sum);
	}
	refused(run);
	rdma_disconnect(id);
	rdma_dereg_mr(memory_mr);
	rdma_dereg_mr(messages_mr);
	rdma_destroy_ep(id);
	printf("DONE\n");
	return 0;
}
