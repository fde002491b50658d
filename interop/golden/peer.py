"""Provokes every RoCE opcode that a Linux 6.1 rdma_rxe knows, between two guests.

peer.py server GIDINDEX PORT            waits for the client's TCP connection, answers
peer.py client GIDINDEX PORT ADDRESS    runs all cases

Each case makes a new pair of queue pairs (path MTU 256). Both sides walk through the same list of cases; the TCP connection
carries queue pair numbers and keys, and keeps them in step.
"""
import json
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute, GID
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

SHORT, LONG, SIZE = 5, 600, 4096
QKEY = 0x11111111
IMM = 0x12345678
ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
          e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_MW_BIND)


class Case:
    def __init__(self, name, qpt, opcode, length, status=e.IBV_WC_SUCCESS, recvs=1, window=False, bad_key=False,
                 psn_gap=0, recv_len=SIZE, late_recv=False, solicited=False,
                 no_rights=False):
        self.__dict__.update(locals())


RC, UC, UD = e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD
CASES = []
for n in (SHORT, LONG):
    CASES += [
        Case('send', RC, e.IBV_WR_SEND, n), Case('send imm', RC, e.IBV_WR_SEND_WITH_IMM, n),
        Case('send inv', RC, e.IBV_WR_SEND_WITH_INV, n, window=True),
        Case('write', RC, e.IBV_WR_RDMA_WRITE, n, recvs=0), Case('write imm', RC, e.IBV_WR_RDMA_WRITE_WITH_IMM, n),
        Case('read', RC, e.IBV_WR_RDMA_READ, n, recvs=0),
        Case('uc send', UC, e.IBV_WR_SEND, n), Case('uc send imm', UC, e.IBV_WR_SEND_WITH_IMM, n),
        Case('uc write', UC, e.IBV_WR_RDMA_WRITE, n, recvs=0),
        Case('uc write imm', UC, e.IBV_WR_RDMA_WRITE_WITH_IMM, n),
    ]
CASES += [
    Case('send solicited, empty', RC, e.IBV_WR_SEND, 0, solicited=True),
    Case('write empty', RC, e.IBV_WR_RDMA_WRITE, 0, recvs=0),
    Case('read empty', RC, e.IBV_WR_RDMA_READ, 0, recvs=0),
    Case('fetch add', RC, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, recvs=0),
    Case('compare swap', RC, e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, recvs=0),
    Case('rnr', RC, e.IBV_WR_SEND, SHORT, late_recv=True),
    Case('bad key', RC, e.IBV_WR_RDMA_WRITE, SHORT, e.IBV_WC_REM_ACCESS_ERR, recvs=0, bad_key=True),
    Case('bad key read', RC, e.IBV_WR_RDMA_READ, SHORT, e.IBV_WC_REM_ACCESS_ERR, recvs=0, bad_key=True),
    # 6.1 answers a receive buffer that is too small with "remote operational error".
    Case('too long', RC, e.IBV_WR_SEND, LONG, e.IBV_WC_REM_OP_ERR, recv_len=SHORT),
    Case('not allowed', RC, e.IBV_WR_RDMA_READ, SHORT, e.IBV_WC_REM_INV_REQ_ERR, recvs=0, no_rights=True),
    Case('psn gap', RC, e.IBV_WR_RDMA_WRITE, SHORT, e.IBV_WC_RETRY_EXC_ERR, recvs=0, psn_gap=5),
    Case('ud send', UD, e.IBV_WR_SEND, SHORT), Case('ud send imm', UD, e.IBV_WR_SEND_WITH_IMM, SHORT + 1),
]


class Talk:
    def __init__(self, sock):
        self.f = sock.makefile('rw')

    def say(self, **what):
        self.f.write(json.dumps(what) + '\n')
        self.f.flush()

    def hear(self):
        line = self.f.readline()
        if not line:
            raise SystemExit('the other side is gone')
        return json.loads(line)

    def sync(self):
        self.say()
        self.hear()


def poll(cq):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        n, wcs = cq.poll(1)
        if n:
            return wcs[0]
        time.sleep(0.002)  # translated guests share the host's cores
    raise SystemExit('no completion')


class Side:
    def __init__(self, talk, case, gid_index, client):
        self.case, self.client = case, client
        self.cq = CQ(CTX, 16)
        self.mr = MR(PROTECTION, SIZE, ACCESS)
        self.mr.write(bytes((i * 7 + 1) & 0xFF for i in range(SIZE)) if client else b'\0' * 8 + b'.' * (SIZE - 8), SIZE)
        init = QPInitAttr(qp_type=case.qpt, scq=self.cq, rcq=self.cq, cap=QPCap(16, 16, 1, 1, 0), sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        attr.qp_access_flags = 0 if case.no_rights else ACCESS & ~e.IBV_ACCESS_MW_BIND
        self.qp = QP(PROTECTION, init)
        self.qp.to_init(attr)
        psn = 0x123456 + self.qp.qp_num
        gid = str(CTX.query_gid(1, gid_index))
        talk.say(qpn=self.qp.qp_num, psn=psn, gid=gid, addr=self.mr.buf, rkey=self.mr.rkey)
        self.peer = talk.hear()
        route = GlobalRoute(dgid=GID(self.peer['gid']), sgid_index=gid_index, hop_limit=64)
        self.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.ah = AH(PROTECTION, attr=self.ah_attr) if case.qpt == UD else None
        attr.ah_attr = self.ah_attr
        attr.path_mtu = e.IBV_MTU_256
        attr.dest_qp_num = self.peer['qpn']
        attr.rq_psn = self.peer['psn']
        attr.sq_psn = psn + (case.psn_gap if client else 0)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 14
        # An RNR NAK may be followed by sequence NAKs, which cost retries.
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 1 if case.psn_gap else 6, 7
        self.qp.to_rts(attr)

    def receive(self):
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf, self.case.recv_len, self.mr.lkey)]))

    def bind_window(self):
        """Makes something that the peer may invalidate, and returns its key."""
        self.window = MW(PROTECTION, e.IBV_MW_TYPE_2)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW)
        wr.set_bind_wr(self.window, MWBindInfo(self.mr, self.mr.buf, SIZE, e.IBV_ACCESS_REMOTE_WRITE))
        self.qp.post_send(wr)
        wc = poll(self.cq)
        if wc.status != e.IBV_WC_SUCCESS:
            raise SystemExit(f'bind: status {wc.status}')
        return wr.rkey

    def send(self, key):
        c = self.case
        flags = e.IBV_SEND_SIGNALED | (e.IBV_SEND_SOLICITED if c.solicited else 0)
        sge = [SGE(self.mr.buf, c.length, self.mr.lkey)]
        wr = SendWR(opcode=c.opcode, num_sge=1, sg=sge, send_flags=flags)
        if c.opcode in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
            wr.imm_data = socket.htonl(IMM)
        elif c.opcode == e.IBV_WR_SEND_WITH_INV:
            wr.imm_data = key  # shares its place with invalidate_rkey
        rkey = self.peer['rkey'] ^ (0xFF00 if c.bad_key else 0)
        if c.opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
            wr.set_wr_rdma(rkey, self.peer['addr'])
        elif c.opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
            wr.set_wr_atomic(rkey, self.peer['addr'], 0x0102030405060708, 0)
        elif c.opcode == e.IBV_WR_ATOMIC_CMP_AND_SWP:
            wr.set_wr_atomic(rkey, self.peer['addr'], 0, 0x1112131415161718)
        if self.ah:
            wr.set_wr_ud(self.ah, self.peer['qpn'], QKEY)
        self.qp.post_send(wr)

    def close(self):
        self.qp.close()
        if self.case.window and not self.client:
            self.window.close()
        if self.ah:
            self.ah.close()
        self.mr.close()
        self.cq.close()


def run(talk, gid_index, client):
    for case in CASES:
        print('case', case.name, case.length)
        side = Side(talk, case, gid_index, client)
        talk.sync()
        key = 0
        if client:
            key = talk.hear()['key']
            side.send(key)
            talk.say()  # sent
            wc = poll(side.cq)
            if wc.status != case.status:
                raise SystemExit(f'{case.name} {case.length}: status {wc.status}, want {case.status}')
        else:
            if not case.late_recv:
                for _ in range(case.recvs):
                    side.receive()
            talk.say(key=side.bind_window() if case.window else 0)
            talk.hear()
            if case.late_recv:
                time.sleep(0.2)  # until after the RNR NAK
                side.receive()
            if case.recvs and case.status == e.IBV_WC_SUCCESS:
                wc = poll(side.cq)
                if wc.status != e.IBV_WC_SUCCESS:
                    raise SystemExit(f'{case.name} {case.length}: receive status {wc.status}')
        talk.sync()
        side.close()


role, index, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CTX = Context(name='rxe0')
PROTECTION = PD(CTX)
if role == 'server':
    with socket.create_server(('::', port), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        connection = listener.accept()[0]
else:
    connection = socket.create_connection((sys.argv[4], port))
with connection:
    run(Talk(connection), index, role == 'client')
print('done')
