"""The words, in three languages. A line a word; the columns are explained above each table."""

from dataclasses import dataclass

# English singular and plural | German, gender, plural; * = weak: the plural is also the singular's other cases
# | Chinese, measure word | what it is; he, she, it = how it is referred to
NOUNS = """
man men             | Mann m Männer                | 男人 个   | person grown he
woman women         | Frau f Frauen                | 女人 个   | person grown she
child children      | Kind n Kinder                | 孩子 个   | person kin
boy boys            | Junge m Jungen *             | 男孩 个   | person he
girl girls          | Mädchen n Mädchen            | 女孩 个   | person
teacher teachers    | Lehrer m Lehrer              | 老师 位   | person kin grown he
doctor doctors      | Arzt m Ärzte                 | 医生 位   | person kin grown he
student students    | Student m Studenten *        | 学生 个   | person grown he
farmer farmers      | Bauer m Bauern *             | 农民 个   | person grown he
neighbor neighbors  | Nachbar m Nachbarn *         | 邻居 个   | person kin grown he
baker bakers        | Bäcker m Bäcker              | 面包师 个 | person grown he
cook cooks          | Koch m Köche                 | 厨师 个   | person grown he
painter painters    | Maler m Maler                | 画家 位   | person grown he
pilot pilots        | Pilot m Piloten *            | 飞行员 个 | person grown he
soldier soldiers    | Soldat m Soldaten *          | 士兵 个   | person grown he
king kings          | König m Könige               | 国王 位   | person grown he
queen queens        | Königin f Königinnen         | 女王 位   | person grown she
sister sisters      | Schwester f Schwestern       | 姐姐 个   | person kin she
brother brothers    | Bruder m Brüder              | 哥哥 个   | person kin he
aunt aunts          | Tante f Tanten               | 阿姨 个   | person kin grown she
uncle uncles        | Onkel m Onkel                | 叔叔 个   | person kin grown he
grandmother grandmothers | Großmutter f Großmütter | 奶奶 个   | person kin grown she
dog dogs            | Hund m Hunde                 | 狗 只     | animal it
cat cats            | Katze f Katzen               | 猫 只     | animal it
horse horses        | Pferd n Pferde               | 马 匹     | animal strong it
bird birds          | Vogel m Vögel                | 鸟 只     | animal it
cow cows            | Kuh f Kühe                   | 牛 头     | animal strong it
mouse mice          | Maus f Mäuse                 | 老鼠 只   | animal it
rabbit rabbits      | Hase m Hasen *               | 兔子 只   | animal it
bear bears          | Bär m Bären *                | 熊 只     | animal strong it
monkey monkeys      | Affe m Affen *               | 猴子 只   | animal it
elephant elephants  | Elefant m Elefanten *        | 大象 头   | animal strong it
lion lions          | Löwe m Löwen *               | 狮子 头   | animal it
pig pigs            | Schwein n Schweine           | 猪 头     | animal it
duck ducks          | Ente f Enten                 | 鸭子 只   | animal it
fox foxes           | Fuchs m Füchse               | 狐狸 只   | animal it
wolf wolves         | Wolf m Wölfe                 | 狼 只     | animal it
animal animals      | Tier n Tiere                 | 动物 只   | animal strong it
apple apples        | Apfel m Äpfel                | 苹果 个   | food fruit it
cake cakes          | Kuchen m Kuchen              | 蛋糕 个   | food baked it
egg eggs            | Ei n Eier                    | 鸡蛋 个   | food boiled it
banana bananas      | Banane f Bananen             | 香蕉 根   | food fruit it
tomato tomatoes     | Tomate f Tomaten             | 西红柿 个 | food fruit it
potato potatoes     | Kartoffel f Kartoffeln       | 土豆 个   | food boiled it
carrot carrots      | Karotte f Karotten           | 胡萝卜 根 | food boiled it
orange oranges      | Orange f Orangen             | 橙子 个   | food fruit it
pear pears          | Birne f Birnen               | 梨 个     | food fruit it
lemon lemons        | Zitrone f Zitronen           | 柠檬 个   | food fruit it
cookie cookies      | Keks m Kekse                 | 饼干 块   | food baked it
onion onions        | Zwiebel f Zwiebeln           | 洋葱 个   | food boiled it
mushroom mushrooms  | Pilz m Pilze                 | 蘑菇 个   | food boiled it
milk -              | Milch f -                    | 牛奶 -    | drink it
water -             | Wasser n -                   | 水 -      | drink it
tea -               | Tee m -                      | 茶 -      | drink it
coffee -            | Kaffee m -                   | 咖啡 -    | drink it
juice -             | Saft m -                     | 果汁 -    | drink it
wine -              | Wein m -                     | 葡萄酒 -  | drink it
book books          | Buch n Bücher                | 书 本     | text written object it
letter letters      | Brief m Briefe               | 信 封     | text written sent it
newspaper newspapers | Zeitung f Zeitungen         | 报纸 份   | text object it
poem poems          | Gedicht n Gedichte           | 诗 首     | text written it
story stories       | Geschichte f Geschichten     | 故事 个   | text written it
magazine magazines  | Zeitschrift f Zeitschriften  | 杂志 本   | text object it
car cars            | Auto n Autos                 | 汽车 辆   | object machine vehicle it
bicycle bicycles    | Fahrrad n Fahrräder          | 自行车 辆 | object machine vehicle it
table tables        | Tisch m Tische               | 桌子 张   | object load it
chair chairs        | Stuhl m Stühle               | 椅子 把   | object load it
key keys            | Schlüssel m Schlüssel        | 钥匙 把   | object small it
bag bags            | Tasche f Taschen             | 包 个     | object small it
hat hats            | Hut m Hüte                   | 帽子 顶   | object small it
shirt shirts        | Hemd n Hemden                | 衬衫 件   | object clothes it
coat coats          | Mantel m Mäntel              | 大衣 件   | object clothes it
dress dresses       | Kleid n Kleider              | 连衣裙 条 | object clothes it
lamp lamps          | Lampe f Lampen               | 灯 盏     | object switched it
knife knives        | Messer n Messer              | 刀 把     | object small sharp it
cup cups            | Tasse f Tassen               | 杯子 个   | object small fragile it
bottle bottles      | Flasche f Flaschen           | 瓶子 个   | object small fragile opened it
plate plates        | Teller m Teller              | 盘子 个   | object small fragile it
picture pictures    | Bild n Bilder                | 画 幅     | object it
ball balls          | Ball m Bälle                 | 球 个     | object small it
computer computers  | Computer m Computer          | 电脑 台   | object machine switched it
camera cameras      | Kamera f Kameras             | 照相机 台 | object machine small it
umbrella umbrellas  | Regenschirm m Regenschirme   | 雨伞 把   | object small it
box boxes           | Kiste f Kisten               | 箱子 个   | object load opened it
suitcase suitcases  | Koffer m Koffer              | 行李箱 个 | object load opened it
flower flowers      | Blume f Blumen               | 花 朵     | object drawn it
stone stones        | Stein m Steine               | 石头 块   | load it
gift gifts          | Geschenk n Geschenke         | 礼物 件   | object opened sent it
ticket tickets      | Fahrkarte f Fahrkarten       | 票 张     | object small it
mirror mirrors      | Spiegel m Spiegel            | 镜子 面   | object fragile it
pencil pencils      | Bleistift m Bleistifte       | 铅笔 支   | object small it
ring rings          | Ring m Ringe                 | 戒指 枚   | object small it
television televisions | Fernseher m Fernseher     | 电视机 台 | object machine switched it
door doors          | Tür f Türen                  | 门 扇     | opening it
window windows      | Fenster n Fenster            | 窗户 扇   | opening it
room rooms          | Zimmer n Zimmer              | 房间 个   | space it
kitchen kitchens    | Küche f Küchen               | 厨房 个   | space it
house houses        | Haus n Häuser                | 房子 座   | building drawn it
tree trees          | Baum m Bäume                 | 树 棵     | drawn it
street streets      | Straße f Straßen             | 马路 条   | way it
bridge bridges      | Brücke f Brücken             | 桥 座     | way it
field fields        | Feld n Felder                | 田野 片   | way it
song songs          | Lied n Lieder                | 歌 首     | song it
"""

# English | German, stem before an ending | Chinese, * = with 的 before a noun | what it is said of
ADJECTIVES = """
big         | groß groß                | 大       | animal object load building space food
small       | klein klein              | 小       | animal object load building space food
new         | neu neu                  | 新       | object building
red         | rot rot                  | 红色 *   | object clothes vehicle fruit
blue        | blau blau                | 蓝色 *   | object clothes vehicle
green       | grün grün                | 绿色 *   | object clothes vehicle fruit
black       | schwarz schwarz          | 黑色 *   | object clothes vehicle
white       | weiß weiß                | 白色 *   | object clothes vehicle
heavy       | schwer schwer            | 重 *     | load object
expensive   | teuer teur               | 贵 *     | object food drink building
cheap       | billig billig            | 便宜 *   | object food drink
beautiful   | schön schön              | 漂亮 *   | object building
clean       | sauber sauber            | 干净 *   | object opening space
dirty       | schmutzig schmutzig      | 脏 *     | object opening space way
fresh       | frisch frisch            | 新鲜 *   | food
sweet       | süß süß                  | 甜 *     | fruit baked drink
sour        | sauer saur               | 酸 *     | fruit drink
cold        | kalt kalt                | 冷 *     | drink space
hot         | heiß heiß                | 烫 *     | drink boiled
interesting | interessant interessant  | 有趣 *   | text
boring      | langweilig langweilig    | 无聊 *   | text
long        | lang lang                | 长       | text song way
wide        | breit breit              | 宽 *     | way
dangerous   | gefährlich gefährlich    | 危险 *   | way
tired       | müde müd                 | 累 *     | person animal
hungry      | hungrig hungrig          | 饿 *     | person animal
young       | jung jung                | 年轻 *   | grown
sad         | traurig traurig          | 难过 *   | person
happy       | glücklich glücklich      | 高兴 *   | person
strong      | stark stark              | 强壮 *   | person strong
weak        | schwach schwach          | 虚弱 *   | person animal
clever      | klug klug                | 聪明 *   | person animal
brave       | mutig mutig              | 勇敢 *   | person animal
friendly    | freundlich freundlich    | 友好 *   | person
lazy        | faul faul                | 懒 *     | person animal
thirsty     | durstig durstig          | 渴 *     | person animal
nervous     | nervös nervös            | 紧张 *   | person animal
slow        | langsam langsam          | 慢 *     | animal vehicle
"""

# English, with s, past | German infinitive (prefix-verb), he ..., participle, + = sein, dative = its object
# | Chinese: verb, or before@verb@after its object; * = a result, which 不 splits; = never past | who > what
VERBS = """
eat eats ate               | essen isst gegessen                       | 吃        | person animal > food
drink drinks drank         | trinken trinkt getrunken                  | 喝        | person animal > drink
read reads read            | lesen liest gelesen                       | 读        | person > text
write writes wrote         | schreiben schreibt geschrieben            | 写        | person > written
translate translates translated | übersetzen übersetzt übersetzt       | 翻译      | grown > text
see sees saw               | sehen sieht gesehen                       | 看见 *    | person animal > animal object
hear hears heard           | hören hört gehört                         | 听见 *    | person animal > person animal
find finds found           | finden findet gefunden                    | 找到 *    | person > object animal
buy buys bought            | kaufen kauft gekauft                      | 买        | person > object food drink
sell sells sold            | verkaufen verkauft verkauft               | 卖        | grown > object food
love loves loved           | lieben liebt geliebt                      | 爱 =      | person > person animal
know knows knew            | kennen kennt gekannt                      | 认识 =    | person > person
wash washes washed         | waschen wäscht gewaschen                  | 洗        | person > clothes vehicle fragile
carry carries carried      | tragen trägt getragen                     | 搬        | person strong > load
pull pulls pulled          | ziehen zieht gezogen                      | 拉        | person strong > load vehicle
repair repairs repaired    | reparieren repariert repariert            | 修理      | grown > machine
draw draws drew            | zeichnen zeichnet gezeichnet              | 画        | person > drawn animal
lose loses lost            | verlieren verliert verloren               | 丢        | person > small
look-for looks-for looked-for | suchen sucht gesucht                   | 找        | person animal > small animal
steal steals stole         | stehlen stiehlt gestohlen                 | 偷        | person > small vehicle
hide hides hid             | verstecken versteckt versteckt            | 藏        | person > small
break breaks broke         | zerbrechen zerbricht zerbrochen           | 打破      | person > fragile
chase chases chased        | jagen jagt gejagt                         | 追        | animal > animal
feed feeds fed             | füttern füttert gefüttert                 | 喂        | person > animal
watch watches watched      | beobachten beobachtet beobachtet          | 观察      | person animal > animal
visit visits visited       | besuchen besucht besucht                  | 看望      | person > person
cook cooks cooked          | kochen kocht gekocht                      | 煮        | person > boiled
bake bakes baked           | backen backt gebacken                     | 烤        | person > baked
sing sings sang            | singen singt gesungen                     | 唱        | person > song
cross crosses crossed      | überqueren überquert überquert            | 穿过      | person animal > way
open opens opened          | auf-machen macht aufgemacht               | 打开      | person > opening opened
close closes closed        | zu-machen macht zugemacht                 | 关        | person > opening
throw-away throws-away threw-away | weg-werfen wirft weggeworfen       | 扔掉      | person > small food clothes
put-on puts-on put-on      | an-ziehen zieht angezogen                 | 穿        | person > clothes
tidy-up tidies-up tidied-up | auf-räumen räumt aufgeräumt              | 收拾      | person > space
turn-off turns-off turned-off | aus-schalten schaltet ausgeschaltet    | 关掉      | person > switched
invite invites invited     | ein-laden lädt eingeladen                 | 邀请      | person > person
pick-up picks-up picked-up | ab-holen holt abgeholt                    | 接        | grown > person
call calls called          | an-rufen ruft angerufen                   | 给@打@电话 | person > person
help helps helped          | helfen hilft geholfen dative              | 帮助      | person > person animal
thank thanks thanked       | danken dankt gedankt dative               | 感谢      | person > person
answer answers answered    | antworten antwortet geantwortet dative    | 回答      | person > person
sleep sleeps slept         | schlafen schläft geschlafen               | 睡觉      | person animal
work works worked          | arbeiten arbeitet gearbeitet              | 工作      | grown
laugh laughs laughed       | lachen lacht gelacht                      | 笑        | person
cry cries cried            | weinen weint geweint                      | 哭        | person
dance dances danced        | tanzen tanzt getanzt                      | 跳舞      | person
swim swims swam            | schwimmen schwimmt geschwommen +          | 游泳      | person
get-up gets-up got-up      | auf-stehen steht aufgestanden +           | 起床      | person
wake-up wakes-up woke-up   | auf-wachen wacht aufgewacht +             | 醒来      | person animal
fall-asleep falls-asleep fell-asleep | ein-schlafen schläft eingeschlafen + | 入睡    | person animal
"""

# as above; who > what, to whom
GIVING = """
give gives gave   | geben gibt gegeben           | 给   | person > object food sent
send sends sent   | schicken schickt geschickt   | 寄给 | person > sent
lend lends lent   | leihen leiht geliehen        | 借给 | person > object
sell sells sold   | verkaufen verkauft verkauft  | 卖给 | grown > object food
"""

GOING = """
go goes went      | gehen geht gegangen +        | 去     | person
drive drives drove | fahren fährt gefahren +     | 开车去 | grown
"""

# who says what
SAYING = """
know knows knew          | wissen weiß gewusst       | 知道 = | person
believe believes believed | glauben glaubt geglaubt  | 相信 = | person
say says said            | sagen sagt gesagt         | 说 =   | person
hope hopes hoped         | hoffen hofft gehofft      | 希望 = | person
"""

# English where, where to | German where, where to | Chinese where, where to
PLACES = """
in the park        | to the park        | im Park             | in den Park           | 公园里   | 公园
in the garden      | to the garden      | im Garten           | in den Garten         | 花园里   | 花园
at the school      | to the school      | in der Schule       | in die Schule         | 学校里   | 学校
in the city        | to the city        | in der Stadt        | in die Stadt          | 城里     | 城里
at the market      | to the market      | auf dem Markt       | auf den Markt         | 市场上   | 市场
in the office      | to the office      | im Büro             | ins Büro              | 办公室里 | 办公室
in the museum      | to the museum      | im Museum           | ins Museum            | 博物馆里 | 博物馆
in the library     | to the library     | in der Bibliothek   | in die Bibliothek     | 图书馆里 | 图书馆
in the hospital    | to the hospital    | im Krankenhaus      | ins Krankenhaus       | 医院里   | 医院
in the restaurant  | to the restaurant  | im Restaurant       | ins Restaurant        | 餐馆里   | 餐馆
in the forest      | to the forest      | im Wald             | in den Wald           | 森林里   | 森林
in the village     | to the village     | im Dorf             | ins Dorf              | 村子里   | 村子
at the beach       | to the beach       | am Strand           | an den Strand         | 海滩上   | 海滩
in the church      | to the church      | in der Kirche       | in die Kirche         | 教堂里   | 教堂
"""

# English | German | Chinese | when
TIMES = """
yesterday      | gestern         | 昨天     | past
last week      | letzte Woche    | 上周     | past
this morning   | heute Morgen    | 今天早上 | past
last year      | letztes Jahr    | 去年     | past
two days ago   | vor zwei Tagen  | 两天前   | past
today          | heute           | 今天     | present
every day      | jeden Tag       | 每天     | present
now            | jetzt           | 现在     | present
every evening  | jeden Abend     | 每天晚上 | present
tomorrow       | morgen          | 明天     | future
tonight        | heute Abend     | 今晚     | future
next week      | nächste Woche   | 下周     | future
"""


@dataclass(frozen=True)
class Noun:
    en: str
    en_plural: str
    de: str
    gender: str
    de_plural: str
    weak: bool
    zh: str
    measure: str
    tags: frozenset[str]

    @property
    def pronoun(self) -> str:
        return next((word for word in ("he", "she", "it") if word in self.tags), "")

    @property
    def is_owned(self) -> bool:
        """Whether `my` goes with it: not every king is mine."""
        return "person" not in self.tags or "kin" in self.tags

    @property
    def is_mass(self) -> bool:
        return self.en_plural == "-"


@dataclass(frozen=True)
class Adjective:
    en: str
    de: str
    stem: str
    zh: str
    linked: bool
    tags: frozenset[str]

    @property
    def is_colour(self) -> bool:
        return self.zh.endswith("色")


@dataclass(frozen=True)
class Verb:
    """`prefix` stands apart in a main clause; `moves`: the perfect is made with sein. `result`: a Chinese verb that 不
    splits; `lasting`: not said of the past."""

    en: str
    en_s: str
    en_past: str
    prefix: str
    infinitive: str
    de_s: str
    participle: str
    moves: bool
    dative: bool
    zh: tuple[str, str, str]
    result: bool
    lasting: bool
    subjects: frozenset[str]
    objects: frozenset[str]


@dataclass(frozen=True)
class Place:
    en: str
    en_to: str
    de: str
    de_to: str
    zh: str
    zh_to: str


@dataclass(frozen=True)
class Time:
    en: str
    de: str
    zh: str
    tense: str


def _lines(table: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("|")] for line in table.strip().splitlines()]


def _noun(columns: list[str]) -> Noun:
    (en, en_plural), german = columns[0].split(), columns[1].split()
    zh, measure = columns[2].split()
    weak, tags = german[-1] == "*", frozenset(columns[3].split())
    return Noun(en, en_plural, german[0], german[1], german[2], weak, zh, measure, tags)


def _adjective(columns: list[str]) -> Adjective:
    (de, stem), chinese = columns[1].split(), columns[2].split()
    return Adjective(columns[0], de, stem, chinese[0], "*" in chinese, frozenset(columns[3].split()))


def _verb(columns: list[str]) -> Verb:
    en, en_s, en_past = (word.replace("-", " ") for word in columns[0].split())
    infinitive, de_s, participle, *more = columns[1].split()
    prefix, _, plain = infinitive.rpartition("-")
    chinese, who = columns[2].split(), columns[3].partition(">")
    before, verb, after = chinese[0].split("@") if "@" in chinese[0] else ("", chinese[0], "")
    return Verb(
        en, en_s, en_past, prefix, plain, de_s, participle, "+" in more, "dative" in more, (before, verb, after),
        "*" in chinese, "=" in chinese, frozenset(who[0].split()), frozenset(who[2].split()),
    )  # fmt: skip


nouns = [_noun(columns) for columns in _lines(NOUNS)]
adjectives = [_adjective(columns) for columns in _lines(ADJECTIVES)]
verbs = [_verb(columns) for columns in _lines(VERBS)]
giving = [_verb(columns) for columns in _lines(GIVING)]
going = [_verb(columns) for columns in _lines(GOING)]
saying = [_verb(columns) for columns in _lines(SAYING)]
places = [Place(*columns) for columns in _lines(PLACES)]
times = [Time(*columns) for columns in _lines(TIMES)]
