"""The functions that the model was trained with, and the questions that they answer."""

from tools.demo_model.skills.functions import Family, Parameter

P = Parameter
CITY = P(
    "city",
    "location|city|place|town|city_name|where",
    "The city|City and country, e.g. Paris, France|The city and state, e.g. San Francisco, CA|Name of the city|The location|The city to get the weather for",
)
DEGREES = P(
    "degrees",
    "unit|units|temperature_unit|scale",
    "The unit of temperature|Units of the temperature|The temperature unit to use",
    "string",
    "celsius",
    options="celsius|fahrenheit",
)
FIRST_NUMBER = P("number", "a|x|first|left|first_int", "The first number|First int", "number")
SECOND_NUMBER = P(
    "number_2", "b|y|second|right|second_int", "The second number|Second int", "number"
)

FAMILIES = (
    Family(
        "get_weather|get_current_weather|weather|fetch_weather|getWeather|weather_lookup|check_weather|current_weather|get_forecast|get_temperature",
        "Get the current weather in a given location|Get current temperature for a given location.|Returns the weather for a city|Get the weather in a location|Gets the current weather of a place.|Look up the weather|Weather forecast for a city",
        (CITY, DEGREES),
        "What is the weather in {city}?|What's the weather in {city}?|What is the weather like in {city} today?|What's the weather like in {city}?|How is the weather in {city}?|How warm is it in {city}?|How cold is it in {city} right now?|Is it raining in {city}?|Tell me the weather in {city}.|Weather in {city}|Show me the weather for {city}.|What is the temperature in {city}?|Do I need an umbrella in {city}?|Check the weather in {city}, please.|Give me the forecast for {city}.|What should I wear in {city} today?|Will it rain in {city} tomorrow?|Is it sunny in {city}?|I am going to {city}. What is the weather there?|What is the current weather in {city}?|What is the weather in {city} in {Degrees}?|How warm is it in {city}, in degrees {Degrees}?|Tell me the temperature in {city} in {degrees}.",
        "The weather in {city}",
        "temperature temperature|condition sky|humidity percent|wind few|forecast sky",
        "What is the weather in {all}?|What's the weather like in {all}?|Compare the weather in {all}.|How warm is it in {all}?|Tell me the weather in {all}.|Is it raining in {all}?",
    ),
    Family(
        "get_time|get_current_time|current_time|time_in_city|what_time|getTime|local_time|get_local_time",
        "Get the current time in a city|Returns the local time|Current time for a given place|Gets the time in a location|Tells the time",
        (
            P(
                "city",
                "city|location|place|timezone|zone",
                "The city|The timezone|Name of the place|Where",
            ),
        ),
        "What time is it in {city}?|What is the time in {city}?|Tell me the time in {city}.|Current time in {city}|What's the local time in {city}?|How late is it in {city}?|Can you tell me what time it is in {city}?|Which time is it in {city} now?|Give me the time in {city}.",
        "The time in {city}",
        "time time|date date",
        "What time is it in {all}?|Tell me the time in {all}.",
    ),
    Family(
        "calculate|calculator|evaluate|compute|math|do_math|eval_expression|calc",
        "Evaluate a mathematical expression|Calculates an expression|A calculator|Does arithmetic|Useful for math",
        (
            P(
                "expression",
                "expression|formula|input|query|expr",
                "The expression to evaluate|e.g. 2 + 2|A math expression",
            ),
        ),
        "What is {expression}?|Calculate {expression}.|How much is {expression}?|Compute {expression}|{expression} = ?|What's {expression}?|Please calculate {expression} for me.|Can you work out {expression}?|Evaluate {expression}.|Tell me what {expression} is.|{expression}",
        "{expression}",
        "result amount|value amount",
        "What is {all}?|Calculate {all}.",
    ),
    Family(
        "multiply|multiply_numbers|times|product",
        "Multiply two numbers|Multiplies a and b.|Returns the product of two numbers",
        (FIRST_NUMBER, SECOND_NUMBER),
        "What is {number} * {number_2}?|Multiply {number} by {number_2}.|What is {number} times {number_2}?|What is {number} multiplied by {number_2}?|How much is {number} times {number_2}?|Multiply {number} and {number_2}",
        "{number} times {number_2}",
        "result number",
    ),
    Family(
        "add|add_numbers|sum|plus|sum_numbers",
        "Add two numbers|Adds a and b.|Returns the sum of two numbers",
        (FIRST_NUMBER, SECOND_NUMBER),
        "What is {number} + {number_2}?|Add {number} and {number_2}.|What is {number} plus {number_2}?|What is the sum of {number} and {number_2}?|How much is {number} plus {number_2}?|Add {number} to {number_2}.",
        "{number} plus {number_2}",
        "result number",
    ),
    Family(
        "search|web_search|search_web|google|internet_search|search_internet|tavily_search|find_online",
        "Search the web|Searches the internet|A search engine|Look something up on the web|Finds pages for a query",
        (
            P(
                "subject",
                "query|q|search_query|text|keywords|input",
                "The search query|What to search for|The query",
            ),
        ),
        "Search for {subject}.|Search the web for {subject}.|Find {subject} on the internet.|Look up {subject} online.|Can you search for {subject}?|Google {subject}|Please look for {subject} on the web.|Find me {subject}.|Do a web search for {subject}.|Search {subject}",
        "The search for {subject}",
        "title title|url email|results few",
    ),
    Family(
        "get_stock_price|stock_price|get_price|get_quote|stock_quote|lookup_stock|share_price",
        "Get the current price of a stock|Returns the stock price of a ticker|Latest share price|Gets a quote for a symbol",
        (
            P(
                "ticker",
                "symbol|ticker|stock|ticker_symbol",
                "The ticker symbol|e.g. AAPL|Stock symbol",
            ),
        ),
        "What is the stock price of {ticker}?|How much is {ticker} stock?|What is {ticker} trading at?|Get the price of {ticker} shares.|Stock price of {ticker}|How are {ticker} shares doing?|Quote for {ticker}, please.|Tell me the share price of {ticker}.|What does a share of {ticker} cost?",
        "The price of {ticker}",
        "price price|currency currency|change percent",
        "What are the stock prices of {all}?|Compare the shares of {all}.|How much are {all} shares?",
    ),
    Family(
        "create_event|add_event|schedule_meeting|create_calendar_event|add_to_calendar|book_meeting|calendar_create|new_event",
        "Create an event in the calendar|Adds an entry to the user's calendar|Schedule a meeting|Creates a calendar event",
        (
            P("event", "title|name|event|summary|subject", "The title of the event|What it is"),
            P("date", "date|day|when|start_date", "The date|Day of the event"),
            P("time", "time|start|start_time|hour", "The time|Start time", "string", "unknown"),
        ),
        "Put a {event} on {date} into my calendar.|Add a {event} on {date} to my calendar.|Schedule a {event} for {date}.|Create an event: {event}, {date}.|Schedule a {event} for {date} at {time}.|Plan a {event} on {date} at {time}.|Book a {event} on {date} at {time}, please.|Add a {event} to my calendar on {date} at {time}.",
        "The {event} on {date}",
        "status state|event_id code",
    ),
    Family(
        "get_calendar|list_events|get_events|calendar|check_calendar|my_appointments|get_schedule",
        "Get the events of a day|Lists calendar entries|Shows the user's schedule|Returns appointments for a date",
        (P("date", "date|day|when", "The date|The day"),),
        "What is on my calendar on {date}?|Do I have anything on {date}?|What are my appointments on {date}?|Show my schedule for {date}.|Which events do I have on {date}?|Am I free on {date}?|Check my calendar for {date}.",
        "Your calendar on {date}",
        "event event|time time|count few",
    ),
    Family(
        "get_order_status|order_status|track_order|lookup_order|get_order|check_order|get_delivery_date|find_order|get_tracking",
        "Get the status of an order|Looks up an order by its number|Get the delivery date for a customer's order.|Tracks an order|Order information",
        (
            P(
                "code",
                "order_id|id|order|order_number|number",
                "The order's id|The customer's order ID.|Order number",
            ),
        ),
        "Where is my order {code}?|What is the status of order {code}?|Track order {code}.|When will my order {code} arrive?|Has order {code} been shipped?|Look up order {code}, please.|My order number is {code}. Where is it?|Order status {code}|Can you tell me the delivery date for my order {code}?|I am waiting for order {code}.|Can you tell me the delivery date for my order? The number is {code}.|When does {code} arrive? It is my order.",
        "Order {code}",
        "status state|eta date|delivery_date date|carrier company|total price",
        "Where are my orders {all}?|What is the status of orders {all}?",
    ),
    Family(
        "convert_units|unit_converter|convert|convert_unit|unit_conversion",
        "Convert a value from one unit to another|Converts units|Unit conversion",
        (
            P(
                "amount",
                "value|amount|quantity|number",
                "The value to convert|The amount",
                "number",
            ),
            P("unit", "from_unit|from|source_unit|unit_from", "The unit to convert from"),
            P("unit_2", "to_unit|to|target_unit|unit_to", "The unit to convert to"),
        ),
        "Convert {amount} {unit} to {unit_2}.|How many {unit_2} are {amount} {unit}?|What is {amount} {unit} in {unit_2}?|How much is {amount} {unit} in {unit_2}?|{amount} {unit} to {unit_2}|Please convert {amount} {unit} into {unit_2}.",
        "{amount} {unit} in {unit_2}",
        "result amount|value amount",
    ),
    Family(
        "convert_currency|currency_converter|exchange|exchange_rate|convert_money|fx",
        "Convert an amount of money between currencies|Currency conversion|Converts money",
        (
            P("amount", "amount|value|sum|money", "The amount", "number"),
            P("currency", "from_currency|from|base|source", "The currency to convert from"),
            P("currency_2", "to_currency|to|target|quote", "The currency to convert to"),
        ),
        "Convert {amount} {currency} to {currency_2}.|How much is {amount} {currency} in {currency_2}?|What is {amount} {currency} in {currency_2}?|Change {amount} {currency} into {currency_2}.|{amount} {currency} to {currency_2}",
        "{amount} {currency} in {currency_2}",
        "result amount|rate amount",
    ),
    Family(
        "translate|translate_text|translator|get_translation|to_language",
        "Translate text into another language|Translates a text|A translation service",
        (
            P("subject", "text|input|phrase|sentence|content", "The text to translate|The phrase"),
            P(
                "language",
                "target_language|language|to|lang|target",
                "The target language|Language to translate to",
            ),
        ),
        "Translate {subject} into {language}.|How do you say {subject} in {language}?|What is {subject} in {language}?|Say {subject} in {language}.|Translate {subject} to {language}, please.",
        "{subject} in {language}",
        "translation subject|text subject",
    ),
    Family(
        "send_email|email|send_mail|write_email|send_message|mail",
        "Send an email|Sends an email to a recipient with a subject|Sends a message to someone",
        (
            P("email", "to|recipient|address|email", "The recipient|The email address"),
            P("subject", "subject|title|topic|body|message", "The subject|What it is about"),
        ),
        "Send an email to {email} about {subject}.|Write to {email} about {subject}.|Email {email} about {subject}.|Can you send {email} a message about {subject}?|Please send {email} a mail about {subject}.",
        "The email to {email}",
        "status state|message_id code",
    ),
    Family(
        "set_timer|start_timer|timer|countdown|create_timer",
        "Set a timer|Starts a timer|Sets a timer for a number of minutes",
        (
            P(
                "few",
                "minutes|duration|length|duration_minutes|mins",
                "The minutes|Length in minutes",
                "integer",
            ),
        ),
        "Set a timer for {few} minutes.|Start a timer of {few} minutes.|Timer {few} minutes|Wake me in {few} minutes.|Set a {few} minute timer, please.|Remind me in {few} minutes.",
        "The timer of {few} minutes",
        "status state|timer_id code",
    ),
    Family(
        "turn_on_light|light_on|switch_on|turn_on_lights|lights|set_light|control_light",
        "Turn on the light in a room|Switches the lights on|Controls the lights",
        (P("room", "room|area|where|zone", "The room|Which room"),),
        "Turn on the light in the {room}.|Switch on the lights in the {room}.|Lights on in the {room}, please.|Make it bright in the {room}.|Turn the {room} lights on.|It is dark in the {room}.",
        "The light in the {room}",
        "status state|brightness percent",
        "Turn on the lights in {all}.|Switch on the lights in {all}.",
    ),
    Family(
        "define_word|dictionary|define|look_up_word|get_definition|word_meaning|lookup_word",
        "Look a word up in the dictionary|Gets the definition of a word|A dictionary",
        (P("word", "word|term|entry", "The word|The word to look up"),),
        "What does the word {word} mean?|Define the word {word}.|Look up the word {word}.|Look {word} up in the dictionary.|Give me the definition of the word {word}.|Dictionary: {word}",
        "The word {word}",
        "definition subject|origin language",
    ),
    Family(
        "get_distance|distance|route|calculate_distance|plan_route|get_route|directions|get_directions",
        "Get the distance between two cities|Calculates a route|Directions from one place to another",
        (
            P("city", "origin|from|start|city_a|from_city", "Where it begins|The origin"),
            P("city_2", "destination|to|end|city_b|to_city", "Where it ends|The destination"),
        ),
        "How far is it from {city} to {city_2}?|What is the distance between {city} and {city_2}?|How do I get from {city} to {city_2}?|How long does it take to get from {city} to {city_2}?|Give me a route from {city} to {city_2}.|Directions from {city} to {city_2}",
        "The way from {city} to {city_2}",
        "distance number|duration time|kilometers number",
    ),
    Family(
        "book_flight|search_flights|find_flights|get_flights|flight_search|flights|reserve_flight",
        "Book a flight|Searches flights between two cities|Finds flights on a date",
        (
            P("city", "origin|from|from_city|departure", "The city of departure|From where"),
            P("city_2", "destination|to|to_city|arrival", "The city of arrival|To where"),
            P("date", "date|day|departure_date|when", "The date|Day of the flight"),
        ),
        "Book a flight from {city} to {city_2} on {date}.|Find flights from {city} to {city_2} on {date}.|I want to fly from {city} to {city_2} on {date}.|Which flights go from {city} to {city_2} on {date}?|I need a flight from {city} to {city_2} on {date}.|Flights from {city} to {city_2}, {date}",
        "The flight from {city} to {city_2}",
        "flight code|price price|departure time",
    ),
    Family(
        "get_news|news|latest_news|news_search|headlines|fetch_news",
        "Get the latest news about a subject|Returns headlines|News search",
        (P("thing", "topic|subject|query|about", "The subject|What the news are about"),),
        "What is new about {thing}?|Show me news about {thing}.|Latest news on {thing}|What are the headlines about {thing}?|Any news about {thing}?|Tell me the news about {thing}.",
        "The news about {thing}",
        "headline title|date date",
    ),
    Family(
        "get_population|population|country_population|how_many_people|inhabitants",
        "Get the population of a place|Returns how many people live somewhere|Population of a country or city",
        (P("place", "place|country|city|name|location", "The place|Name of the country or city"),),
        "How many people live in {place}?|What is the population of {place}?|How many inhabitants does {place} have?|How big is the population of {place}?|Population of {place}",
        "The population of {place}",
        "population number|year year",
        "How many people live in {all}?|What is the population of {all}?",
    ),
    Family(
        "get_capital|capital|capital_of|find_capital",
        "Get the capital of a country|Returns a country's capital",
        (P("country", "country|name|country_name", "The country|Name of the country"),),
        "What is the capital of {country}?|Which city is the capital of {country}?|Tell me the capital of {country}.|Capital of {country}|Name the capital of {country}.",
        "The capital of {country}",
        "capital city",
        "What are the capitals of {all}?",
    ),
    Family(
        "read_file|open_file|get_file|cat|view_file|load_file|read",
        "Read a file|Returns the contents of a file|Opens a file",
        (P("path", "path|file|filename|file_path|name", "The path of the file|Which file"),),
        "Read {path}.|Open the file {path}.|What is in {path}?|Show me {path}.|Read the file {path}, please.|Print the contents of {path}.",
        "The file {path}",
        "content subject|lines number",
    ),
    Family(
        "add_todo|create_task|add_task|todo|new_todo|add_reminder|remember",
        "Add a task to the list|Creates a todo|Adds a reminder",
        (P("task", "task|text|title|item|todo", "The task|What to do"),),
        "Add {task} to my list.|Put {task} on my todo list.|New task: {task}|I must {task}, add it to my tasks.|Create a task: {task}|Add a task to {task}.",
        "The task",
        "status state|task_id code",
    ),
    Family(
        "roll_dice|roll_die|dice|random_number|throw_dice",
        "Roll a die|Roll a six-sided die and return the result.|Throws dice",
        (),
        "Roll a die.|Roll the dice.|Throw a die for me.|My guess is {few}.|Roll the dice, please!|Can you roll a die?",
        "The die",
        "result few",
    ),
    Family(
        "get_user|get_user_name|whoami|get_player_name|current_user|get_profile",
        "Get the player's name.|Returns the name of the current user|The user's profile",
        (),
        "What is my name?|Who am I?|Do you know my name?|Look up my name.|Tell me my name.",
        "Your name",
        "name person|email email",
    ),
    Family(
        "get_today|today|current_date|get_date|now|get_current_date|date",
        "Get today's date|Returns the current date and time|Today's date",
        (),
        "What day is today?|What is today's date?|What time is it?|Which day is it?|What is the date?|Tell me today's date.",
        "Today",
        "date date|time time",
    ),
    Family(
        "get_horoscope|horoscope|daily_horoscope|star_sign",
        "Get today's horoscope for an astrological sign.|Returns a horoscope|Horoscope of a sign",
        (
            P(
                "sign",
                "sign|star_sign|zodiac",
                "An astrological sign like Taurus or Aquarius|The sign",
            ),
        ),
        "What is my horoscope? I am an {sign}.|What is my horoscope? I am a {sign}.|What do the stars say for {sign} today?|Horoscope {sign}|Give me the horoscope for {sign}.|I am a {sign}. What is my horoscope?",
        "The horoscope of {sign}",
        "horoscope subject|lucky_number few",
    ),
    Family(
        "get_customer|find_customer|lookup_customer|customer|get_account|find_user|get_contact",
        "Get a customer by email|Looks a customer up|Finds the account of a person",
        (
            P(
                "email",
                "email|mail|address|customer_email",
                "The email address|The customer's email",
            ),
        ),
        "Find the customer {email}.|Which customer has the email {email}?|Look up {email}.|Get the account of {email}.|Show me the customer with the address {email}.|Is {email} a customer?",
        "The customer {email}",
        "name person|status state|city city",
    ),
)
