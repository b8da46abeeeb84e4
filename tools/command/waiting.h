// Says what takes long, after one second: on a terminal a line that counts the seconds and is wiped
// out at the end, elsewhere one line. Goes to stderr, so that what is printed for other software stays clean.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "engine/run/start/planning.h"

namespace sluice {

class Waiting {
 public:
  // `what`: "planning". `err` must outlive this.
  Waiting(std::FILE* err, std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void tell(std::string what);  // from now on, in place of what was said

 private:
  void run();
  void say(int seconds);

  std::FILE* err_;
  std::string what_, said_;
  size_t shown_ = 0;  // characters of the terminal's line
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable end_;
  std::thread thread_;
};

// plan_within(), with a word on stderr where it takes long: how many tasks, how much memory, how much time.
std::variant<Plan, Infeasible> make_plan_patiently(PlanRequest request, const Budgets& budgets);

}  // namespace sluice
