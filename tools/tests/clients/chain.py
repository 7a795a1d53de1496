"""langchain-openai asks a server that is given by its address: whole, streamed, by a schema, with a tool, for vectors."""
import sys
import typing

import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

address, key, name = sys.argv[1:4]
model = ChatOpenAI(base_url=f"{address}/v1", api_key=key, model=name, temperature=0, max_tokens=40, max_retries=0)
question = HumanMessage("Name a colour.")

whole = model.invoke([question])
assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
assert "".join(piece.content for piece in model.stream([question])) == whole.content


class Answer(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]


answer = model.with_structured_output(Answer, method="json_schema").invoke([question])
assert answer.colour in ("red", "green"), answer


@tool
def weather(city: typing.Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


asked = model.bind_tools([weather], tool_choice="any").invoke([HumanMessage("What is the weather in Paris?")])
call = asked.tool_calls[0]
assert call["name"] == "weather" and weather.invoke(call["args"]).startswith("sunny"), asked
told = model.invoke([question, asked, ToolMessage("sunny", tool_call_id=call["id"])])
assert isinstance(told.content, str)

vectors = OpenAIEmbeddings(base_url=f"{address}/v1", api_key=key, model=name, check_embedding_ctx_length=False)
assert len(vectors.embed_documents(["a cat", "interest rates"])) == 2
print("langchain-openai")
