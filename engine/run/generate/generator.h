// Generation: the prompts of a batch are read in chunks, all prompts together. Then the tokens of each answer
// are drawn, one after the other, until all answers have ended.
//
// Needs a session, with weights loaded, of a plan whose model generates (Model::readings: decode, then
// prefill). One body is in flight at a time, since each token decides what the next one reads. A sequence's
// rows are idle when it has ended, or while others still read their prompts. All ranks take the same path,
// since the first rank draws for all. Owner: the verb, the trainer, or a test; one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/run/execute/session.h"
#include "engine/run/generate/sampling.h"

namespace sluice {

enum class Ending : uint8_t {
  none,     // it goes on
  token,    // an end token, which is not part of the answer
  text,     // the caller ended it after a token
  length,   // the answer has as many tokens as were asked for
  context,  // the sequence has as many tokens as the plan has room for
  stopped,  // it was interrupted
};

struct Answer {
  std::vector<uint32_t> tokens;
  Ending ending = Ending::none;
};

struct Prompt {
  std::vector<uint32_t> tokens;  // at least 1, fewer than the context
  uint64_t number = 0;           // for draws
};

// Throws Error(usage) for a prompt that is empty, leaves no room for an answer, or has a token that the model
// does not have.
void check_prompt(const std::vector<uint32_t>& tokens, int64_t context, int64_t vocabulary);

class Generator {
 public:
  // `ends`: ids that end an answer. `bodies`: those of the phase (Lowering::phases). Requires that no update
  // is pending.
  Generator(Session& session, const BodyIds& bodies, const Sampling& sampling, std::vector<uint32_t> ends);
  Generator(Session& session, const Sampling& sampling, std::vector<uint32_t> ends)
      : Generator(session, session.plan().lowering.bodies(), sampling, std::move(ends)) {}

  int64_t sequences() const { return session_.plan().model.readings.front().sequences; }
  int64_t context() const { return session_.plan().model.readings.front().context; }

  // Answers up to sequences() prompts at once, each with up to `tokens_max` tokens. `said` gets each token as
  // it comes, with the prompt's place among `prompts`. It returns whether the answer goes on, and must return
  // the same on all ranks. With `continues`, tokens that the call before cached in a place are not read
  // again, as far as the prompt in that place begins with them. Throws the session's error, and as
  // check_prompt() and drawn_token() do, on all ranks.
  std::vector<Answer> answer(std::span<const Prompt> prompts, int64_t tokens_max, bool continues,
                             const std::function<bool(size_t, uint32_t)>& said,
                             const std::atomic<bool>& stop);

  int64_t tokens_read() const { return tokens_read_; }    // of prompts, so far
  int64_t tokens_drawn() const { return tokens_drawn_; }  // of answers, so far

 private:
  struct Sequence;
  class Inputs;

  uint8_t ring() const { return session_.plan().lowering.reading_ring; }
  bool stops(const std::atomic<bool>& stop) const;
  void run_reading(size_t reading);
  void read_prompts(std::vector<Sequence>& all, const std::atomic<bool>& stop);
  std::span<const float> row_of(size_t reading, size_t place);  // logits of the reading that ran last
  uint32_t first_draws(const Sequence& sequence, size_t reading, size_t place);
  void draw(Sequence& sequence, size_t reading, size_t place);
  void decode(std::vector<Sequence>& all);

  Session& session_;
  std::vector<BodyId> bodies_;  // by reading
  Sampling sampling_;
  std::vector<uint32_t> ends_;
  std::vector<std::vector<uint32_t>> cached_;  // by place: the tokens whose keys and values are cached
  std::vector<float> logits_;                  // of one row
  uint64_t position_ = 0;                      // the ring's position for the body that ran last
  int64_t tokens_read_ = 0, tokens_drawn_ = 0;
};

}  // namespace sluice
