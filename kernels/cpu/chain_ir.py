"""The function ``chain``: one team of threads runs kernels one after the other, without coming back in between.

From Python every call of a kernel costs some 10 us, and to wake a thread for it 30 us; a step of one token makes
hundreds. So the threads wait for each other here: a few microseconds as they are, then giving their cores to whoever
wants them, since on a busy machine that is the thread they wait for.
"""

from __future__ import annotations

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import BYTES, I32, I64, LONGS, VOID, Int, Ptr, external, loop, pause

NAME = "chain"
ENTRY_FIELDS = 2
TURNS = 300  # of waiting before a core is given away: some 15 us


def build(module: ir.Module) -> None:
    """``chain(job, threads)``: by a team of ``threads``, or fewer. ``job``: entries, their number, 0 (how many threads
    have arrived). An entry is a kernel's address and its job's."""
    kernel = ir.FunctionType(VOID, [BYTES])
    member = _member(module, kernel)
    fn = ir.Function(module, ir.FunctionType(VOID, [BYTES, I32]), NAME)
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    job, threads = Ptr(b, b.bitcast(fn.args[0], LONGS)), fn.args[1]
    entries, count = job.int().longs(), (job + 1).int()
    with loop(b, 0, count) as i:
        (entries + (i * ENTRY_FIELDS + 1)).int().longs().store(ir.Constant(I64, 0))  # no task has been taken
    parallel = external(module, "GOMP_parallel", VOID, [kernel.as_pointer(), BYTES, I32, I32])
    b.call(
        parallel, [member, fn.args[0], threads, I32(0)]
    )  # of one, too: within another team that is a team of its own
    b.ret_void()


def _member(module: ir.Module, kernel: ir.FunctionType) -> ir.Function:
    """What each thread of the team does: its part of every kernel, and waiting until all have done theirs."""
    fn = ir.Function(module, kernel, "chain_member")
    fn.linkage = "internal"
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    job = Ptr(b, b.bitcast(fn.args[0], LONGS))
    entries, count, arrived = job.int().longs(), (job + 1).int(), job + 2
    size = external(module, "omp_get_num_threads", I32, [])  # which may be less than what was asked for
    team = Int(b, b.zext(b.call(size, []), I64))
    give_way = external(module, "sched_yield", I32, [])
    with loop(b, 0, count) as i:
        address, data = ((entries + (i * ENTRY_FIELDS + k)).int() for k in range(ENTRY_FIELDS))
        b.call(b.inttoptr(address.value, kernel.as_pointer()), [b.inttoptr(data.value, BYTES)])
        b.atomic_rmw("add", arrived.value, ir.Constant(I64, 1), "acq_rel")
        everyone = team * (i + 1)
        begin = b.block
        wait, again, leave, go_on = (fn.append_basic_block(x) for x in ("wait", "again", "yield", "go_on"))
        b.branch(wait)
        b.position_at_end(wait)
        turn = b.phi(I64)
        turn.add_incoming(ir.Constant(I64, 0), begin)
        here = Int(b, b.load_atomic(arrived.value, "acquire", 8))
        b.cbranch(here.compare("<", everyone), again, go_on)
        b.position_at_end(again)
        pause(b)
        later = b.add(turn, ir.Constant(I64, 1))
        turn.add_incoming(later, again)
        turn.add_incoming(later, leave)
        b.cbranch(b.icmp_signed("<", turn, ir.Constant(I64, TURNS)), wait, leave)
        b.position_at_end(leave)
        b.call(give_way, [])
        b.branch(wait)
        b.position_at_end(go_on)
    b.ret_void()
    return fn
