#include "models/text/template/chat_template.h"

#include "models/text/template/interpreter.h"
#include "models/text/template/parser.h"

namespace sluice {

ChatTemplate::ChatTemplate(const std::string& source)
    : tree_(std::make_unique<const jinja::Template>(jinja::parse_template(source))) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Rendered ChatTemplate::render(const nlohmann::ordered_json& variables, const RenderOptions& options) const {
  jinja::Budget budget(options.limits);
  return jinja::Interpreter(options, budget).render(*tree_, nullptr, variables, options.control_variables);
}

TemplateMessages::TemplateMessages(std::shared_ptr<const nlohmann::ordered_json> list)
    : list_(std::move(list)), values_(std::make_shared<jinja::MessageValues>(*list_)) {}

Rendered ChatTemplate::render(const TemplateMessages& messages, size_t count,
                              const nlohmann::ordered_json& others, const RenderOptions& options) const {
  jinja::Budget budget(options.limits);
  const jinja::FirstMessages first{messages.values_.get(), count};
  return jinja::Interpreter(options, budget).render(*tree_, &first, others, options.control_variables);
}

}  // namespace sluice
