#include "engine/run/train/guess_choice.h"

namespace sluice {

BodyId next_step(Session& session, const BodyIds& bodies, const IssuedWave* last, bool guesses) {
  if (last == nullptr) return *bodies.first;
  if (!bodies.guess || (bodies.step && !guesses)) return *bodies.step;
  const Body& before = session.plan().program.bodies[last->body];
  if (!before.end.is_guessed()) return *bodies.repair;
  session.executor().wait(last->ticket, when_decided(before));
  session.check();
  return session.scalars(last->position).update.as_guessed() ? *bodies.guess : *bodies.repair;
}

}  // namespace sluice
