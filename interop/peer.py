"""A verbs peer for the tests: does what its TCP client asks for, one JSON object a line, on rxe0 through libibverbs.

peer.py PORT

peer_test.go has the same commands for Verbena, and describes them. What fails is answered with Err and Errno.
"""
import ctypes
import errno
import hashlib
import json
import os
import select
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

TYPES = {'RC': e.IBV_QPT_RC, 'UC': e.IBV_QPT_UC, 'UD': e.IBV_QPT_UD}
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
WITH_IMM = (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM)
WITH_INV = (e.IBV_WR_SEND_WITH_INV, e.IBV_WR_LOCAL_INV)
# rxe hands the kernel's number of this flag to user space, where it means that a checksum is right.
IB_WC_WITH_INVALIDATE = 4
LOCAL = (e.IBV_WR_BIND_MW, e.IBV_WR_LOCAL_INV)
WITH_RETH = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)
ATOMIC = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
CHUNK = 256 << 10
QP_NUM_OFFSET = 52  # in struct ibv_qp, behind six pointers and the handle

CTX = Context(name='rxe0')
PROTECTION = PD(CTX)
# pyverbs has no accessor for the descriptor of asynchronous events.
ASYNC = next(int(fd) for fd in os.listdir('/proc/self/fd')
             if os.path.islink('/proc/self/fd/' + fd) and 'infinibandevent' in os.readlink('/proc/self/fd/' + fd))
SIDES, WINDOWS, GROUPS = {}, {}, {}
COUNT = 0


def number(table, what):
    global COUNT
    COUNT += 1
    table[COUNT] = what
    return COUNT


def stream(seed, length):
    return hashlib.shake_128(struct.pack('<Q', seed)).digest(length)


class Side:
    """A queue pair with its completion queue and its memory."""

    def __init__(self, r):
        self.type, self.family = TYPES[r['Type']], r['Family']
        self.size = r['Size']
        self.cq = CQ(CTX, 512)
        self.mr = MR(PROTECTION, self.size, r['Access'])
        init = QPInitAttr(qp_type=self.type, scq=self.cq, rcq=self.cq, cap=QPCap(128, 128, 4, 4, 0), sq_sig_all=0)
        self.qp = QP(PROTECTION, init)
        self.attr = QPAttr(port_num=1)
        self.attr.qkey = r.get('QKey', 0)
        self.attr.qp_access_flags = r.get('QPAccess', 0)
        self.qp.to_init(self.attr)
        self.sgid, self.gid = next((i, g) for i, g in gids() if g.startswith('::ffff:') == (self.family == 4) and not g.startswith('fe80'))
        self.ahs = []

    def connect(self, r):
        a = self.attr
        a.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(full(r['GID'])), sgid_index=self.sgid, hop_limit=64), is_global=1, port_num=1) \
            if self.type != e.IBV_QPT_UD else a.ah_attr
        a.path_mtu = MTUS[r.get('MTU', 1024)]
        a.dest_qp_num, a.rq_psn, a.sq_psn = r.get('QPN', 0), r.get('PeerPSN', 0), r.get('PSN', 0)
        a.max_rd_atomic = a.max_dest_rd_atomic = r.get('RDAtomic', 4)
        a.min_rnr_timer = r.get('RNRTimer', 0)
        a.timeout, a.retry_cnt, a.rnr_retry = r.get('Timeout', 0), r.get('RetryCnt', 0), r.get('RNRRetry', 0)
        self.qp.to_rts(a)

    def sges(self, r):
        key = self.mr.lkey ^ (0xFFFF00 if r.get('BadLKey') else 0)
        return [SGE(self.mr.buf + off, length, key) for off, length in r.get('SGEs') or [(0, 0)]]  # pyverbs wants one at least

    def recv(self, r):
        s = self.sges(r)
        self.qp.post_recv(RecvWR(wr_id=r['WRID'], num_sge=len(s), sg=s))

    def send(self, r):
        op, s = r['Opcode'], self.sges(r)
        wr = SendWR(wr_id=r['WRID'], opcode=op, send_flags=r.get('Flags', 0), **({} if op in LOCAL else {'num_sge': len(s), 'sg': s}))
        if op in WITH_IMM:
            wr.imm_data = socket.htonl(r.get('Imm', 0))
        elif op in WITH_INV:
            wr.imm_data = r['InvKey']  # shares its place with invalidate_rkey
        if op in WITH_RETH:
            wr.set_wr_rdma(r.get('RKey', 0), r.get('RemoteAddr', 0))
        elif op in ATOMIC:
            wr.set_wr_atomic(r.get('RKey', 0), r.get('RemoteAddr', 0), r.get('CompareAdd', 0), r.get('Swap', 0))
        if self.type == e.IBV_QPT_UD:
            route = GlobalRoute(dgid=GID(full(r['GID'])), sgid_index=self.sgid, hop_limit=64)
            ah = AH(PROTECTION, attr=AHAttr(gr=route, is_global=1, port_num=1))
            self.ahs.append(ah)
            wr.set_wr_ud(ah, r['QPN'], r['QKey'])
        key = 0
        if op == e.IBV_WR_BIND_MW:
            # pyverbs chooses the key's low byte: the window's plus one.
            wr.set_bind_wr(WINDOWS[r['MW']], self.info(r))
            key = wr.rkey
        self.qp.post_send(wr)
        return {'RKey': key}

    def info(self, r):
        return MWBindInfo(self.mr, self.mr.buf + r.get('Off', 0), r.get('Length', 0), r.get('Access', 0))

    def bind(self, r):
        w = WINDOWS[r['MW']]
        self.qp.bind_mw(w, MWBind(self.info(r), e.IBV_SEND_SIGNALED))
        return {'RKey': w.rkey}

    def poll(self, r):
        out, end = [], time.monotonic() + r['TimeoutMS'] / 1000
        while len(out) < r['Count']:
            n, wcs = self.cq.poll(min(16, r['Count'] - len(out)))
            for wc in wcs or []:
                imm = wc.wc_flags & e.IBV_WC_WITH_IMM
                out.append({'WRID': wc.wr_id, 'Status': wc.status, 'Opcode': wc.opcode, 'Len': wc.byte_len, 'Flags': wc.wc_flags,
                            'Imm': socket.ntohl(wc.imm_data) if imm else 0, 'SrcQP': wc.src_qp,
                            'InvKey': wc.imm_data if wc.wc_flags & IB_WC_WITH_INVALIDATE else 0})
            if not n:
                if time.monotonic() > end:
                    break
                time.sleep(0.002)  # translated guests share the host's cores
        return {'WCs': out}

    def fill(self, r):
        data, at = stream(r['Seed'], r['Length']), r['Off']
        for i in range(0, len(data), CHUNK):
            part = data[i:i + CHUNK]
            ctypes.memmove(self.mr.buf + at + i, part, len(part))

    def bytes(self, r):
        return ctypes.string_at(self.mr.buf + r['Off'], r['Length'])

    def close(self):
        self.qp.close()
        for ah in self.ahs:
            ah.close()
        self.mr.close()
        self.cq.close()


def full(gid):
    """pyverbs wants all eight groups of a GID."""
    b = socket.inet_pton(socket.AF_INET6, gid)
    return ':'.join(b[i:i + 2].hex() for i in range(0, 16, 2))


def gids():
    for i in range(16):
        b = bytes.fromhex(str(CTX.query_gid(1, i)).replace(':', ''))
        if any(b):
            yield i, socket.inet_ntop(socket.AF_INET6, b)


def events():
    out = []
    while select.select([ASYNC], [], [], 0)[0]:
        ev = CTX.get_async_event()
        out.append(int(ev.event_type))
        ev.ack()
    return {'Events': out}


def pointer(qp):
    """The struct ibv_qp of a pyverbs object, which offers neither it nor multicast: the word of the object that leads to a struct
    with the number of the queue pair in its place."""
    with open('/proc/self/mem', 'rb', buffering=0) as mem:  # a read of a wrong address fails instead of ending the process
        for (word,) in struct.iter_unpack('@P', ctypes.string_at(id(qp), qp.__sizeof__() & ~7)):
            try:
                mem.seek(word + QP_NUM_OFFSET)
                if mem.read(4) == struct.pack('@I', qp.qp_num):
                    return word
            except (OSError, ValueError, OverflowError):
                pass
    raise RuntimeError('no struct ibv_qp')


def group(call, r):
    gid = (ctypes.c_uint8 * 16).from_buffer_copy(socket.inet_pton(socket.AF_INET6, r['GID']))
    code = getattr(ctypes.CDLL('libibverbs.so.1'), call)(ctypes.c_void_p(pointer(SIDES[r['QP']].qp)), gid, 0)
    if code:
        raise OSError(code, call)


def attach(r):
    """Attaches to a group, and joins it on the interface: rxe's attach opens the network card's filter only, as if the group were IPv6."""
    group('ibv_attach_mcast', r)
    if r['GID'].startswith('::ffff:'):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack('@4s4si', socket.inet_aton(r['GID'].split(':')[-1]), b'', socket.if_nametoindex('eth0')))
    else:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        index = struct.pack('@I', socket.if_nametoindex('eth0'))
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, r['GID']) + index)
    GROUPS[(r['QP'], r['GID'])] = sock


def detach(r):
    group('ibv_detach_mcast', r)
    GROUPS.pop((r['QP'], r['GID'])).close()


def serve(r):
    op = r['Op']
    if op == 'qp':
        s = Side(r)
        return {'QP': number(SIDES, s), 'QPN': s.qp.qp_num, 'GID': s.gid, 'Addr': s.mr.buf, 'RKey': s.mr.rkey}
    if op == 'window':
        w = MW(PROTECTION, r['Kind'])
        return {'MW': number(WINDOWS, w), 'RKey': w.rkey}
    if op == 'free window':
        w = WINDOWS.pop(r['MW'], None)
        return w and w.close()
    if op == 'events':
        return events()
    if op == 'attach':
        return attach(r)
    if op == 'detach':
        return detach(r)
    s = SIDES[r['QP']]
    if op == 'close':
        return SIDES.pop(r['QP']).close()
    if op == 'state':
        return {'State': int(s.qp.query(e.IBV_QP_STATE)[0].qp_state)}
    if op == 'digest':
        return {'Text': hashlib.sha256(s.bytes(r)).hexdigest()}
    if op == 'bytes':
        return {'Text': s.bytes(r).hex()}
    return {'connect': s.connect, 'recv': s.recv, 'send': s.send, 'poll': s.poll, 'fill': s.fill, 'bind': s.bind}[op](r)


def main():
    with socket.create_server(('0.0.0.0', int(sys.argv[1]))) as listener:
        connection = listener.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = connection.makefile('rw')
    for line in f:
        try:
            answer = serve(json.loads(line)) or {}
        except PyverbsRDMAError as err:
            answer = {'Err': str(err), 'Errno': err.error_code}
        except OSError as err:
            answer = {'Err': str(err), 'Errno': err.errno or errno.EIO}
        except Exception as err:  # a mistake in a test must not end the peer
            answer = {'Err': repr(err), 'Errno': 0}
        f.write(json.dumps(answer) + '\n')
        f.flush()


main()
