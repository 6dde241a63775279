// A first program in Rust: the functions of cohort.h that it needs, declared by hand.
//
//   rustc ring.rs -L DIR/lib -l cohort_c -C link-arg=-Wl,-rpath,DIR/lib
//   dlaunch --nproc-per-node 4 ring
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::ptr::{null, null_mut};

type Handle = *mut c_void;
const INT32: i32 = 5;
const FLOAT64: i32 = 12;
const BLOCK_BASE: i32 = 0x4000_0000;
const SUM: Handle = 1 as Handle;
const FOREVER: i64 = i64::MAX;

#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    value: f64,
    rank: i64,
}

type Reduce = extern "C" fn(*mut c_void, *const c_void, *const c_void, i64, i32, *mut c_void);

extern "C" {
    fn cohort_init(options: *const c_void, runtime: *mut Handle) -> i32;
    fn cohort_finalize(runtime: Handle) -> i32;
    fn cohort_world(runtime: Handle, options: *const c_void, comm: *mut Handle) -> i32;
    fn cohort_comm_free(comm: Handle) -> i32;
    fn cohort_comm_rank(comm: Handle, rank: *mut i32) -> i32;
    fn cohort_comm_size(comm: Handle, size: *mut i32) -> i32;
    fn cohort_all_reduce(comm: Handle, input: *const c_void, out: *mut c_void, count: i64, kind: i32, op: Handle,
                         options: *const c_void, work: *mut Handle) -> i32;
    fn cohort_send(comm: Handle, input: *const c_void, count: i64, kind: i32, peer: i32, options: *const c_void,
                   work: *mut Handle) -> i32;
    fn cohort_receive(comm: Handle, out: *mut c_void, count: i64, kind: i32, peer: i32, options: *const c_void,
                      work: *mut Handle) -> i32;
    fn cohort_op_create(function: Reduce, context: *mut c_void, name: *const c_char, commutative: i32,
                        op: *mut Handle) -> i32;
    fn cohort_op_free(op: Handle) -> i32;
    fn cohort_work_wait(work: Handle, timeout: i64) -> i32;
    fn cohort_work_free(work: Handle) -> i32;
    fn cohort_last_error() -> *const c_char;
}

/// The smaller value and its rank.
extern "C" fn smaller(out: *mut c_void, a: *const c_void, b: *const c_void, count: i64, _: i32, _: *mut c_void) {
    let (out, a, b) = (out as *mut Place, a as *const Place, b as *const Place);
    for i in 0..count as isize {
        // `out` may be `a`: no slices, which must not overlap.
        unsafe {
            let (x, y) = (*a.offset(i), *b.offset(i));
            *out.offset(i) = if (y.value, y.rank) < (x.value, x.rank) { y } else { x };
        }
    }
}

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(cohort_last_error()) }.to_string_lossy().into_owned())
}

unsafe fn around_the_ring(world: Handle, rank: i32, size: i32) -> Result<i32, String> {
    let (mut passing, mut arrived, mut total) = (rank, 0i32, rank);
    for _ in 1..size {
        let mut work: Handle = null_mut();
        let from = &passing as *const i32 as *const c_void;
        let to = &mut arrived as *mut i32 as *mut c_void;
        check(cohort_send(world, from, 1, INT32, (rank + 1) % size, null(), &mut work))?;
        let received = check(cohort_receive(world, to, 1, INT32, (rank + size - 1) % size, null(), null_mut()));
        // The send uses `passing` until it is done, also where the receive has failed.
        let sent = check(cohort_work_wait(work, FOREVER));
        check(cohort_work_free(work))?;
        received?;
        sent?;
        passing = arrived;
        total += arrived;
    }
    Ok(total)
}

unsafe fn run() -> Result<(), String> {
    let (mut job, mut world, mut op): (Handle, Handle, Handle) = (null_mut(), null_mut(), null_mut());
    let (mut rank, mut size) = (0i32, 0i32);
    check(cohort_init(null(), &mut job))?;
    check(cohort_world(job, null(), &mut world))?;
    check(cohort_comm_rank(world, &mut rank))?;
    check(cohort_comm_size(world, &mut size))?;
    let around = around_the_ring(world, rank, size)?;

    let mut sum = rank as f64;
    let buffer = &mut sum as *mut f64 as *mut c_void;
    check(cohort_all_reduce(world, buffer, buffer, 1, FLOAT64, SUM, null(), null_mut()))?;

    let mine = Place { value: if rank == size / 2 { -1.5 } else { rank as f64 }, rank: rank as i64 };
    let mut least = Place { value: 0.0, rank: 0 };
    let block = BLOCK_BASE + std::mem::size_of::<Place>() as i32;
    check(cohort_op_create(smaller, null_mut(), b"least place\0".as_ptr() as *const c_char, 1, &mut op))?;
    let (from, to) = (&mine as *const Place as *const c_void, &mut least as *mut Place as *mut c_void);
    check(cohort_all_reduce(world, from, to, 1, block, op, null(), null_mut()))?;
    check(cohort_op_free(op))?;

    if rank == 0 {
        println!("{size} ranks, around the ring {around}, all-reduce {sum}, least {} on rank {}", least.value, least.rank);
    }
    check(cohort_comm_free(world))?;
    check(cohort_finalize(job))
}

fn main() {
    if let Err(text) = unsafe { run() } {
        eprintln!("ring: {text}");
        std::process::exit(1);
    }
}
