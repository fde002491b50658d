/* A program of librdmacm's calls for the tests, which says every event; cm_ours_test.go is the same with Verbena's.
 *
 * cmpeer serve ADDR PORT tcp|udp PLAN  takes a request for each word of the plan: accept:N or reject:N, with N bytes of private data;
 *                                      slow:N accepts when the peer has asked twice.
 *                                      "hold" takes all requests for ever, with receives posted.
 * cmpeer ask ADDR PORT tcp|udp PLAN    connects with N bytes of private data for each word, a number, and disconnects.
 * cmpeer storm ADDR PORT               connects, sends a message and disconnects, again and again, until something fails.
 * cmpeer pulse ADDR PORT TIMEOUT RETRY has two connections, sends over one of them until a message fails.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 64, SIZE = 64, RESOLVE_MS = 5000, SLOW_S = 7 };
enum { OF_CONNECT = 1, OF_ACCEPT, OF_REJECT };

static struct rdma_event_channel *channel;
static struct rdma_addrinfo *where;
static int datagrams;
static char buffer[SIZE];

static void die(const char *what)
{
	printf("FAILED %s errno=%d (%s)\n", what, errno, strerror(errno));
	exit(1);
}

/* content is different for each kind of message. */
static const uint8_t *content(int kind)
{
	static uint8_t data[256];
	for (int i = 0; i < 256; i++)
		data[i] = i * 7 + kind;
	return data;
}

static void hex(const void *data, int n)
{
	for (int i = 0; i < n; i++)
		printf("%02x", ((const uint8_t *)data)[i]);
}

static void tell(struct rdma_cm_event *e)
{
	printf("%s status=%d", rdma_event_str(e->event), e->status);
	if (datagrams && (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED ||
			  e->event == RDMA_CM_EVENT_UNREACHABLE)) {
		struct rdma_ud_param *p = &e->param.ud;
		printf(" len=%d data=", p->private_data_len);
		hex(p->private_data, p->private_data_len);
		if (e->event == RDMA_CM_EVENT_ESTABLISHED)
			printf(" qkey=%#x", p->qkey);
	} else if (!datagrams) {
		struct rdma_conn_param *p = &e->param.conn;
		printf(" len=%d data=", p->private_data_len);
		hex(p->private_data, p->private_data_len);
		printf(" rr=%d id=%d fc=%d retry=%d rnr=%d srq=%d", p->responder_resources, p->initiator_depth, p->flow_control, p->retry_count,
		       p->rnr_retry_count, p->srq);
	}
	printf("\n");
}

/* get gives the next event, which is acknowledged when id and kind are known. */
static enum rdma_cm_event_type get(struct rdma_cm_id **id, int quiet)
{
	struct rdma_cm_event *e;
	if (rdma_get_cm_event(channel, &e))
		die("get_cm_event");
	enum rdma_cm_event_type t = e->event;
	*id = e->id;
	if (!quiet || (t != RDMA_CM_EVENT_ADDR_RESOLVED && t != RDMA_CM_EVENT_ROUTE_RESOLVED))
		tell(e);
	rdma_ack_cm_event(e);
	return t;
}

static void make_qp(struct rdma_cm_id *id, int receives)
{
	struct ibv_qp_init_attr a = {.qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC, .sq_sig_all = 1};
	a.cap.max_send_wr = a.cap.max_send_sge = a.cap.max_recv_sge = 1;
	a.cap.max_recv_wr = receives ? receives : 1;
	if (rdma_create_qp(id, NULL, &a))
		die("create_qp");
	struct ibv_mr *mr = ibv_reg_mr(id->pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("reg_mr");
	id->context = mr;
	struct ibv_sge s = {.addr = (uintptr_t)buffer, .length = SIZE, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &s, .num_sge = 1}, *bad;
	for (int i = 0; i < receives; i++)
		if (ibv_post_recv(id->qp, &wr, &bad))
			die("post_recv");
}

static void drop(struct rdma_cm_id *id)
{
	if (id->qp) {
		rdma_destroy_qp(id);
		ibv_dereg_mr(id->context);
	}
	if (rdma_destroy_id(id))
		die("destroy_id");
}

static struct rdma_conn_param params(int kind, int len)
{
	struct rdma_conn_param p = {.private_data = content(kind), .private_data_len = len};
	p.responder_resources = kind == OF_ACCEPT ? 4 : 3;
	p.initiator_depth = kind == OF_ACCEPT ? 2 : 5;
	p.flow_control = kind != OF_ACCEPT;
	p.retry_count = 6;
	p.rnr_retry_count = kind == OF_ACCEPT ? 3 : 5;
	return p;
}

static struct rdma_cm_id *resolved(int timeout)
{
	struct rdma_cm_id *id, *of;
	if (rdma_create_id(channel, &id, NULL, where->ai_port_space))
		die("create_id");
	if (rdma_resolve_addr(id, NULL, where->ai_dst_addr, RESOLVE_MS))
		die("resolve_addr");
	if (get(&of, 1) != RDMA_CM_EVENT_ADDR_RESOLVED)
		exit(2);
	uint8_t code = timeout;
	if (timeout && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, sizeof code))
		die("set_option");
	if (rdma_resolve_route(id, RESOLVE_MS))
		die("resolve_route");
	if (get(&of, 1) != RDMA_CM_EVENT_ROUTE_RESOLVED)
		exit(2);
	make_qp(id, 0);
	return id;
}

static void ask(char *plan)
{
	for (char *word = strtok(plan, ","); word; word = strtok(NULL, ",")) {
		struct rdma_cm_id *id = resolved(0), *of;
		struct rdma_conn_param p = params(OF_CONNECT, atoi(word));
		if (rdma_connect(id, &p)) {
			printf("CONNECT errno=%d\n", errno);
		} else if (get(&of, 1) == RDMA_CM_EVENT_ESTABLISHED && !datagrams) {
			if (rdma_disconnect(id))
				die("disconnect");
			get(&of, 1);
		}
		drop(id);
	}
}

static void answer(struct rdma_cm_id *id, const char *word)
{
	int len = atoi(strchr(word, ':') + 1);
	if (word[0] == 'r') {
		if (rdma_reject(id, content(OF_REJECT), len)) {
			printf("REJECT errno=%d\n", errno);
			if (rdma_reject(id, NULL, 0))
				die("reject");
		}
		drop(id);
		return;
	}
	if (word[0] == 's')
		sleep(SLOW_S);
	make_qp(id, 1);
	struct rdma_conn_param p = params(OF_ACCEPT, len);
	p.qp_num = id->qp->qp_num;
	if (rdma_accept(id, &p)) {
		printf("ACCEPT errno=%d\n", errno); /* the kernel has rejected the request */
	} else if (!datagrams) {
		struct rdma_cm_id *of;
		while (get(&of, 0) == RDMA_CM_EVENT_ESTABLISHED)
			;
		rdma_disconnect(id);
	}
	drop(id);
}

static void hold(void)
{
	for (;;) {
		struct rdma_cm_id *id;
		switch (get(&id, 0)) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			make_qp(id, RECEIVES);
			struct rdma_conn_param p = params(OF_ACCEPT, 0);
			if (rdma_accept(id, &p)) {
				printf("ACCEPT errno=%d\n", errno); /* the peer has gone */
				drop(id);
			}
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			drop(id);
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break; /* of one that was dropped already: never */
		default:
			drop(id);
		}
	}
}

static void serve(char *plan)
{
	struct rdma_cm_id *listener, *id;
	if (rdma_create_id(channel, &listener, NULL, where->ai_port_space))
		die("create_id");
	if (rdma_bind_addr(listener, where->ai_src_addr) || rdma_listen(listener, 64))
		die("listen");
	if (!strcmp(plan, "hold"))
		hold();
	for (char *word = strtok(plan, ","); word; word = strtok(NULL, ",")) {
		if (get(&id, 0) != RDMA_CM_EVENT_CONNECT_REQUEST)
			exit(2);
		answer(id, word);
	}
	rdma_destroy_id(listener);
}

static long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* send_one sends a message and waits for its completion. */
static struct ibv_wc send_one(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = id->context;
	struct ibv_sge s = {.addr = (uintptr_t)buffer, .length = SIZE, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
	if (ibv_post_send(id->qp, &wr, &bad))
		return wc;
	for (;;) {
		int n = ibv_poll_cq(id->send_cq, 1, &wc);
		if (n < 0)
			die("poll_cq");
		if (n)
			return wc;
		usleep(2000);
	}
}

static struct rdma_cm_id *connected(int timeout, int retries)
{
	struct rdma_cm_id *id = resolved(timeout), *of;
	struct rdma_conn_param p = params(OF_CONNECT, 0);
	p.retry_count = retries;
	if (rdma_connect(id, &p))
		die("connect");
	if (get(&of, 1) != RDMA_CM_EVENT_ESTABLISHED)
		exit(3);
	return id;
}

static void storm(void)
{
	for (;;) {
		struct rdma_cm_id *id = connected(0, 7), *of;
		struct pollfd f = {.fd = channel->fd, .events = POLLIN};
		struct ibv_wc wc = poll(&f, 1, 0) == 1 ? (struct ibv_wc){0} : send_one(id);
		printf("WC %d\n", wc.status);
		rdma_disconnect(id);
		get(&of, 1);
		drop(id);
	}
}

static void pulse(int timeout, int retries)
{
	struct rdma_cm_id *busy = connected(timeout, retries), *idle = connected(timeout, retries);
	for (int n = 1;; n++) {
		long begin = now_ms();
		struct ibv_wc wc = send_one(busy);
		printf("%s WC %d after %ld ms\n", wc.status ? "END" : "SENT", wc.status, now_ms() - begin);
		if (wc.status)
			break;
		usleep(100000);
	}
	struct pollfd f = {.fd = channel->fd, .events = POLLIN};
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	if (ibv_query_qp(idle->qp, &a, IBV_QP_STATE, &i))
		die("query_qp");
	printf("IDLE events=%d state=%d\n", poll(&f, 1, 0), a.qp_state);
	_exit(0); /* the kernel cleans up */
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 4)
		return 64;
	alarm(85);
	int serves = !strcmp(argv[1], "serve");
	datagrams = argc > 4 && !strcmp(argv[4], "udp");
	struct rdma_addrinfo hints = {.ai_flags = serves ? RAI_PASSIVE : 0, .ai_port_space = datagrams ? RDMA_PS_UDP : RDMA_PS_TCP};
	if (rdma_getaddrinfo(argv[2], argv[3], &hints, &where))
		die("getaddrinfo");
	if (!(channel = rdma_create_event_channel()))
		die("create_event_channel");
	if (serves && argc == 6)
		serve(argv[5]);
	else if (!strcmp(argv[1], "ask") && argc == 6)
		ask(argv[5]);
	else if (!strcmp(argv[1], "storm"))
		storm();
	else if (!strcmp(argv[1], "pulse") && argc == 6)
		pulse(atoi(argv[4]), atoi(argv[5]));
	else
		return 64;
	printf("DONE\n");
	return 0;
}
