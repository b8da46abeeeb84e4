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
  return jinja::Interpreter(options, budget).render(*tree_, variables, options.control_variables);
}

}  // namespace sluice
