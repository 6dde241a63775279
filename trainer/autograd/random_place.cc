#include "cohort/trainer/autograd/random_place.h"

namespace cohort::trainer {
namespace {

thread_local RandomPlace place_of_thread;

}  // namespace

void set_random_place(const RandomPlace& place) { place_of_thread = place; }
RandomPlace random_place() { return place_of_thread; }

}  // namespace cohort::trainer
