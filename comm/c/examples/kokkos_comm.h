// Kokkos views over Cohort, in the shape of KokkosComm: free functions of a communicator and views that start an
// operation and return a request, which keeps the views alive until it is waited for.
//
//   kokkos_cohort::Communicator<> world(comm);                       // of cohort_world; stays the caller's
//   Kokkos::View<double*> sum("sum", n);
//   kokkos_cohort::allreduce(world, part, sum, kokkos_cohort::Sum()).wait();
//
// An operation starts after the kernels of the execution space. Views are contiguous and lie in the host's memory or in
// CUDA's. Errors are exceptions with Cohort's text.
#pragma once

#include <cohort/cohort.h>

#include <Kokkos_Core.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace kokkos_cohort {

struct Sum {
  static cohort_op op() { return COHORT_SUM; }
};
struct Product {
  static cohort_op op() { return COHORT_PRODUCT; }
};
struct Min {
  static cohort_op op() { return COHORT_MIN; }
};
struct Max {
  static cohort_op op() { return COHORT_MAX; }
};

inline void check(cohort_status status) {
  if (status != COHORT_OK) throw std::runtime_error(cohort_last_error());
}

// The element type of a view. Other trivially copyable values are moved as blocks, and have no reduction.
template <typename T>
constexpr cohort_type type_of() {
  static_assert(std::is_trivially_copyable_v<T>, "Cohort moves bytes");
  if (std::is_same_v<T, float>) return COHORT_FLOAT32;
  if (std::is_same_v<T, double>) return COHORT_FLOAT64;
  if (!std::is_integral_v<T> || sizeof(T) > 8) return COHORT_BLOCK(sizeof(T));
  constexpr cohort_type kSigned = sizeof(T) == 1   ? COHORT_INT8
                                  : sizeof(T) == 2 ? COHORT_INT16
                                  : sizeof(T) == 4 ? COHORT_INT32
                                                   : COHORT_INT64;
  return std::is_signed_v<T> ? kSigned : kSigned + 1;  // the unsigned type follows
}

template <typename View>
constexpr int32_t memory_of() {
  return Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename View::memory_space>::accessible ? COHORT_HOST
                                                                                                : COHORT_CUDA;
}

// The CUDA device of an execution space, in this process; 0 for spaces of the host.
template <typename Space>
auto device_of(const Space& space, int) -> decltype(static_cast<int32_t>(space.cuda_device())) {
  return static_cast<int32_t>(space.cuda_device());
}
template <typename Space>
int32_t device_of(const Space&, long) {
  return 0;
}

// An operation under way, and its views.
template <typename... Views>
class Request {
 public:
  Request(cohort_work work, const Views&... views) : work_(work), views_(views...) {}
  Request(Request&& other) noexcept : work_(std::exchange(other.work_, nullptr)), views_(std::move(other.views_)) {}
  Request& operator=(Request&&) = delete;
  // The operation uses the views until it is done.
  ~Request() {
    if (work_ == nullptr) return;
    cohort_work_wait(work_, COHORT_FOREVER);
    cohort_work_free(work_);
  }
  void wait() {
    if (work_ == nullptr) return;
    const cohort_work work = std::exchange(work_, nullptr);
    const cohort_status status = cohort_work_wait(work, COHORT_FOREVER);
    const std::string text = status == COHORT_OK ? "" : cohort_last_error();
    cohort_work_free(work);
    if (status != COHORT_OK) throw std::runtime_error(text);
  }

 private:
  cohort_work work_;
  std::tuple<Views...> views_;
};

template <typename ExecutionSpace = Kokkos::DefaultExecutionSpace>
class Communicator {
 public:
  explicit Communicator(cohort_comm comm, ExecutionSpace space = {}) : comm_(comm), space_(std::move(space)) {
    check(cohort_comm_rank(comm_, &rank_));
    check(cohort_comm_size(comm_, &size_));
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  cohort_comm comm() const { return comm_; }

  // Starts `call(options, work)` on the views, after the kernels that write them.
  template <typename Call, typename... Views>
  Request<Views...> start(Call call, const Views&... views) const {
    static_assert(((memory_of<Views>() == memory_of<std::tuple_element_t<0, std::tuple<Views...>>>()) && ...),
                  "the views lie in the same kind of memory");
    if (!(views.span_is_contiguous() && ...)) throw std::invalid_argument("a view is not contiguous: copy it first");
    space_.fence();
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.memory = memory_of<std::tuple_element_t<0, std::tuple<Views...>>>();
    options.device = device_of(space_, 0);
    cohort_work work = nullptr;
    check(call(&options, &work));
    return Request<Views...>(work, views...);
  }

 private:
  cohort_comm comm_;
  ExecutionSpace space_;
  int32_t rank_ = 0;
  int32_t size_ = 0;
};

template <typename View>
int64_t count_of(const View& view) {
  return static_cast<int64_t>(view.span());
}

template <typename Space, typename In, typename Out, typename Op>
auto allreduce(const Communicator<Space>& on, const In& in, const Out& out, Op) {
  if (in.span() != out.span()) throw std::invalid_argument("allreduce: the views have different sizes");
  return on.start(
      [&](auto* options, auto* work) {
        return cohort_all_reduce(on.comm(), in.data(), out.data(), count_of(in),
                                 type_of<typename Out::non_const_value_type>(), Op::op(), options, work);
      },
      in, out);
}

template <typename Space, typename View>
auto broadcast(const Communicator<Space>& on, const View& view, int root) {
  return on.start(
      [&](auto* options, auto* work) {
        return cohort_broadcast(on.comm(), view.data(), count_of(view), type_of<typename View::non_const_value_type>(),
                                root, options, work);
      },
      view);
}

template <typename Space, typename In, typename Out>
auto allgather(const Communicator<Space>& on, const In& in, const Out& out) {
  if (in.span() * static_cast<size_t>(on.size()) != out.span()) {
    throw std::invalid_argument("allgather: the second view holds one of the first for each rank");
  }
  return on.start(
      [&](auto* options, auto* work) {
        return cohort_all_gather(on.comm(), in.data(), out.data(), count_of(in),
                                 type_of<typename Out::non_const_value_type>(), options, work);
      },
      in, out);
}

template <typename Space, typename View>
auto send(const Communicator<Space>& on, const View& view, int to) {
  return on.start(
      [&](auto* options, auto* work) {
        return cohort_send(on.comm(), view.data(), count_of(view), type_of<typename View::non_const_value_type>(), to,
                           options, work);
      },
      view);
}

template <typename Space, typename View>
auto receive(const Communicator<Space>& on, const View& view, int from) {
  return on.start(
      [&](auto* options, auto* work) {
        return cohort_receive(on.comm(), view.data(), count_of(view), type_of<typename View::non_const_value_type>(),
                              from, options, work);
      },
      view);
}

}  // namespace kokkos_cohort
