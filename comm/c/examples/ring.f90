! A first program in Fortran: the interface for C through iso_c_binding.
!
!   gfortran ring.f90 -o ring $(pkg-config --libs cohort-c)
!   dlaunch --nproc-per-node 4 ring
module cohort
  use, intrinsic :: iso_c_binding
  implicit none
  ! Values of cohort.h.
  integer(c_int32_t), parameter :: cohort_ok = 0, cohort_pending = 1
  integer(c_int32_t), parameter :: cohort_int32 = 5, cohort_float64 = 12, cohort_block_base = int(z'40000000')
  integer(c_intptr_t), parameter :: cohort_sum = 1
  integer(c_int64_t), parameter :: cohort_forever = huge(0_c_int64_t)

  interface
    integer(c_int32_t) function cohort_init(options, runtime) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: options
      type(c_ptr) :: runtime
    end function
    integer(c_int32_t) function cohort_finalize(runtime) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: runtime
    end function
    integer(c_int32_t) function cohort_world(runtime, options, comm) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: runtime, options
      type(c_ptr) :: comm
    end function
    integer(c_int32_t) function cohort_comm_free(comm) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
    end function
    integer(c_int32_t) function cohort_comm_rank(comm, rank) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int32_t) :: rank
    end function
    integer(c_int32_t) function cohort_comm_size(comm, size) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int32_t) :: size
    end function
    ! `op` is a c_ptr of cohort_op_create or transfer(cohort_sum, c_null_ptr).
    integer(c_int32_t) function cohort_all_reduce(comm, in, out, count, type, op, options, work) bind(c)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: comm, in, out, op, options, work
      integer(c_int64_t), value :: count
      integer(c_int32_t), value :: type
    end function
    integer(c_int32_t) function cohort_send(comm, in, count, type, peer, options, work) bind(c)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: comm, in, options, work
      integer(c_int64_t), value :: count
      integer(c_int32_t), value :: type, peer
    end function
    integer(c_int32_t) function cohort_receive(comm, out, count, type, peer, options, work) bind(c)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: comm, out, options, work
      integer(c_int64_t), value :: count
      integer(c_int32_t), value :: type, peer
    end function
    integer(c_int32_t) function cohort_op_create(function, context, name, commutative, op) bind(c)
      import :: c_int32_t, c_ptr, c_funptr, c_char
      type(c_funptr), value :: function
      type(c_ptr), value :: context
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: commutative
      type(c_ptr) :: op
    end function
    integer(c_int32_t) function cohort_op_free(op) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: op
    end function
    integer(c_int32_t) function cohort_work_wait(work, timeout) bind(c)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: work
      integer(c_int64_t), value :: timeout
    end function
    integer(c_int32_t) function cohort_work_free(work) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: work
    end function
    type(c_ptr) function cohort_last_error() bind(c)
      import :: c_ptr
    end function
  end interface

  type, bind(c) :: place
    real(c_double) :: value
    integer(c_int64_t) :: rank
  end type

contains

  ! The smaller value and its rank, as a function for cohort_op_create.
  subroutine smaller(out, a, b, count, type, context) bind(c)
    type(c_ptr), value :: out, a, b, context
    integer(c_int64_t), value :: count
    integer(c_int32_t), value :: type
    type(place), pointer :: least(:), x(:), y(:)
    integer(c_int64_t) :: i
    if (type /= cohort_block_base + 16 .or. c_associated(context)) return
    call c_f_pointer(out, least, [count])
    call c_f_pointer(a, x, [count])
    call c_f_pointer(b, y, [count])
    do i = 1, count
      if (y(i)%value < x(i)%value .or. (y(i)%value == x(i)%value .and. y(i)%rank < x(i)%rank)) then
        least(i) = y(i)
      else
        least(i) = x(i)
      end if
    end do
  end subroutine

  ! Ends the program with the text of the error.
  subroutine check(status)
    integer(c_int32_t), intent(in) :: status
    character(kind=c_char), pointer :: text(:)
    integer :: i
    if (status == cohort_ok) return
    call c_f_pointer(cohort_last_error(), text, [4096])
    i = 1
    do while (text(i) /= c_null_char)
      write (0, '(a)', advance='no') text(i)
      i = i + 1
    end do
    write (0, *)
    stop 1
  end subroutine
end module

program ring
  use cohort
  implicit none
  type(c_ptr) :: job, world, op
  type(c_ptr), target :: work
  integer(c_int32_t) :: rank, size, step, around
  integer(c_int32_t), target :: passing, arrived
  real(c_double), target :: sum
  type(place), target :: mine, least

  call check(cohort_init(c_null_ptr, job))
  call check(cohort_world(job, c_null_ptr, world))
  call check(cohort_comm_rank(world, rank))
  call check(cohort_comm_size(world, size))

  passing = rank
  around = rank
  do step = 1, size - 1
    call check(cohort_send(world, c_loc(passing), 1_c_int64_t, cohort_int32, mod(rank + 1, size), c_null_ptr, &
                           c_loc(work)))
    call check(cohort_receive(world, c_loc(arrived), 1_c_int64_t, cohort_int32, mod(rank + size - 1, size), &
                              c_null_ptr, c_null_ptr))
    call check(cohort_work_wait(work, cohort_forever))
    call check(cohort_work_free(work))
    passing = arrived
    around = around + arrived
  end do

  sum = rank
  call check(cohort_all_reduce(world, c_loc(sum), c_loc(sum), 1_c_int64_t, cohort_float64, &
                               transfer(cohort_sum, c_null_ptr), c_null_ptr, c_null_ptr))

  mine%value = merge(-1.5d0, real(rank, c_double), rank == size / 2)
  mine%rank = rank
  call check(cohort_op_create(c_funloc(smaller), c_null_ptr, 'least place' // c_null_char, 1, op))
  call check(cohort_all_reduce(world, c_loc(mine), c_loc(least), 1_c_int64_t, cohort_block_base + 16, op, c_null_ptr, &
                               c_null_ptr))
  call check(cohort_op_free(op))

  if (rank == 0) then
    print '(i0, a, i0, a, i0, a, f0.1, a, i0)', size, ' ranks, around the ring ', around, ', all-reduce ', &
      int(sum), ', least ', least%value, ' on rank ', least%rank
  end if
  call check(cohort_comm_free(world))
  call check(cohort_finalize(job))
end program
